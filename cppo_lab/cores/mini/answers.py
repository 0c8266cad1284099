"""The responses that the embedded trainer keeps: outcomes and texts of a validation, texts and tokens of a batch.

Nothing here draws from a generator or changes a number of the run.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cppo_lab.answers.outcomes import Outcomes, chosen_problems, no_outcomes, problem_ids
from cppo_lab.answers.records import StepAnswers
from cppo_lab.answers.texts import TRAINING, VALIDATION, Sample
from cppo_lab.answers.tokens import RecordedTokens, chosen_groups
from cppo_lab.cores.mini.model import Rollout
from cppo_lab.cores.mini.objective import ObjectiveResult
from cppo_lab.cores.mini.tasks import Problems, Task
from cppo_lab.cores.rule_loss import rule_used
from cppo_lab.maths.masks import decisions
from cppo_lab.spec import AnswersSpec, MiniRun


class MiniAnswerRecorder:
    """Collects the answers of a validated step; `take` returns them."""

    def __init__(self, spec: MiniRun, task: Task, sets: dict[str, Problems], settings: AnswersSpec) -> None:
        self.spec, self.task, self.settings = spec, task, settings
        tokenizer, symbols = task.tokenizer, np.arange(task.tokenizer.vocabulary)
        self._pieces = np.array(tokenizer.names(symbols.tolist()), dtype=object)
        # In texts, which are read, every spelling of a number looks like the first; tokens keep their names.
        self._words = self._pieces[
            np.where(symbols < tokenizer.operator, symbols % tokenizer.modulus, symbols)
        ]
        names = [name for name, problems in sets.items() for _ in range(len(problems))]
        places = [place for place, problems in enumerate(sets.values()) for _ in range(len(problems))]
        contents = [str(values) for problems in sets.values() for values in problems.identities()]
        ids = problem_ids(names, contents)
        self._benchmarks, self._ids = names, ids
        self._none = no_outcomes(spec.validation.samples, list(sets), ids, places)
        self._chosen = chosen_problems(places, settings.wanted_problems)
        self._outcomes: Outcomes | None = None
        self._samples: list[Sample] = []
        self._groups: dict[int, _Group] = {}
        self._trained_groups: list[int] = []

    def take(self) -> StepAnswers | None:
        """What was collected since the last call; None if there was no validation."""
        answers = None
        if self._outcomes is not None:
            step = int(self._outcomes.steps[-1])
            answers = StepAnswers(self._outcomes, tuple(self._samples), self._tokens(step))
        self._outcomes, self._samples, self._groups, self._trained_groups = None, [], {}, []
        return answers

    def validation(self, step: int, problems: Problems, rollout: Rollout, rewards: Tensor) -> None:
        """Add the responses of a validation: `samples` consecutive ones for each of `problems`, with rewards [N]."""
        k = self.spec.validation.samples
        right, ends = rewards.view(-1, k) == 1, self._ended(rollout).view(-1, k)
        lengths = rollout.lengths.view(-1, k)
        self._outcomes = self._none.append(
            step,
            right.sum(1).cpu().numpy(),
            (~ends).sum(1).cpu().numpy(),
            lengths.double().mean(1).cpu().numpy(),
        )
        for row, sample in self._responses(
            VALIDATION, step, self._chosen, k, problems, rollout, rewards, self._ids
        ):
            self._samples.append(replace(sample, benchmark=self._benchmarks[row // k]))

    def batch(
        self,
        step: int,
        problems: Problems,
        rollout: Rollout,
        rewards: Tensor,
        advantages: Tensor,
        keep: Tensor,
    ) -> None:
        """Add responses of some groups of a training batch; rewards, advantages, `keep` (as in GradedRollout): [B]."""
        n = self.spec.batch.responses
        trained = keep.view(-1, n)[:, 0].nonzero()[:, 0].tolist()
        self._trained_groups = chosen_groups(trained, self.settings.groups)
        ids = problem_ids([TRAINING] * len(problems), [str(values) for values in problems.identities()])
        groups = self._trained_groups
        for row, sample in self._responses(TRAINING, step, groups, n, problems, rollout, rewards, ids):
            reward, advantage = float(rewards[row]), float(advantages[row])
            self._samples.append(replace(sample, group=row // n, reward=reward, advantage=advantage))

    def update(self, rows: Tensor, result: ObjectiveResult, order: Tensor | None) -> None:
        """Add the tokens of a minibatch, whose responses are the batch's `rows` [B], before its optimiser step."""
        n = self.spec.batch.responses
        owners = (rows // n).cpu()
        for group in self._trained_groups:
            members = (owners == group).nonzero()[:, 0]
            if len(members):
                self._groups[group] = _Group.of(result, members.to(rows.device), order)

    def _tokens(self, step: int) -> RecordedTokens | None:
        groups = [(number, self._groups[number]) for number in self._trained_groups if number in self._groups]
        if not groups:
            return None
        rewards = {
            (sample.group, sample.draw): sample.reward for sample in self._samples if sample.kind == TRAINING
        }
        draws = [(number, draw) for number, group in groups for draw in range(len(group.lengths))]
        columns: dict[str, Any] = {
            name: np.concatenate([group.columns[name] for _, group in groups])
            for name in groups[0][1].columns
        }
        vocabulary = np.unique(columns["token"])
        return RecordedTokens(
            step=step,
            rule=rule_used(self.spec),
            tests=groups[0][1].tests,
            ends=np.cumsum(np.concatenate([group.lengths for _, group in groups])),
            group=np.array([number for number, _ in draws], dtype=np.int64),
            draw=np.array([draw for _, draw in draws], dtype=np.int64),
            advantage=np.concatenate([group.advantage for _, group in groups]),
            reward=np.array([rewards[place] for place in draws], dtype=np.float32),
            **columns,
            vocabulary=vocabulary,
            pieces=tuple(self._pieces[vocabulary].tolist()),
        )

    def _responses(
        self,
        kind: Literal["validation", "training"],
        step: int,
        places: Sequence[int],
        size: int,
        problems: Problems,
        rollout: Rollout,
        rewards: Tensor,
        ids: Sequence[str],
    ) -> Iterator[tuple[int, Sample]]:
        """The row and the sample of each of the `size` consecutive responses to the problems at `places`."""
        ended, responses = self._ended(rollout).cpu(), rollout.responses.cpu().numpy()
        for place, draw in itertools.product(places, range(size)):
            row = place * size + draw
            end, length = bool(ended[row]), int(rollout.lengths[row])
            response = responses[row, :length]
            yield (
                row,
                Sample(
                    kind=kind,
                    step=step,
                    benchmark="",
                    problem=ids[place],
                    draw=draw,
                    prompt=" ".join(self._words[problems.prompts[place].numpy()]),
                    response=" ".join(self._words[response]),
                    truth=" ".join(map(str, problems.answers[place].tolist())),  # as `Task.answer` writes it
                    answer=self.task.answer(response.tolist()),
                    right=float(rewards[row]) == 1,
                    length=length,
                    cut_off=not end,
                    stop="end" if end else "length",
                ),
            )

    def _ended(self, rollout: Rollout) -> Tensor:
        """Whether each response has its end token [B]."""
        last = rollout.responses.gather(1, (rollout.lengths[:, None] - 1).clamp(min=0))[:, 0]
        return (rollout.lengths > 0) & (last == self.task.tokenizer.eos)


@dataclass(frozen=True)
class _Group:
    """The concatenated tokens of a group's responses; see `RecordedTokens`."""

    tests: tuple[str, ...]
    lengths: NDArray[np.int64]
    advantage: NDArray[np.float32]
    columns: dict[str, NDArray[Any]]  # of RecordedTokens, [n] each

    @classmethod
    def of(cls, result: ObjectiveResult, members: Tensor, order: Tensor | None) -> "_Group":
        """The responses `members` of a minibatch; `order` [B, T] permutes positions, for the rule that shuffles."""
        rollout = result.rollout
        valid = rollout.valid()
        part = valid & torch.zeros_like(valid).index_fill_(0, members, True)
        decision = decisions(result.output, part)
        values = {
            "token": (rollout.responses[part], np.int32),
            "rollout_logp": (rollout.logp[part], np.float32),
            "logp": (result.logp[part], np.float32),
            "divergence": (result.divergence[part], np.float32),
            "keep": (decision.keep, np.float32),
            "reason": (decision.reason, np.uint8),
            "order": (part.new_zeros(0) if order is None else order[:, : part.shape[1]][part], np.int32),
        }
        return cls(
            decision.tests,
            rollout.lengths[members].cpu().numpy().astype(np.int64),
            result.advantages[members].cpu().numpy().astype(np.float32),
            {name: tensor.cpu().numpy().astype(kind) for name, (tensor, kind) in values.items()},
        )
