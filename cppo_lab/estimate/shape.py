"""The inputs of the estimates: the model's shape and the numbers of tokens of a run."""

from dataclasses import dataclass

from cppo_lab.estimate.assumptions import MEAN_RESPONSE, MEAN_SHARE, PROBLEMS_PER_BENCHMARK, PROMPT_TOKENS
from cppo_lab.spec import HubModel, MathData, RunSpec, SyntheticModel, TaskData


@dataclass(frozen=True)
class ModelShape:
    """A transformer in numbers; `active` counts the parameters that one token uses."""

    parameters: float
    active: float
    layers: int
    width: int
    kv_width: int
    vocabulary: int

    @property
    def is_moe(self) -> bool:
        """Whether a token uses only a part of the parameters."""
        return self.active < self.parameters


@dataclass(frozen=True)
class Amounts:
    """Responses and tokens of one training step and one validation, and how many of each there are."""

    responses: int
    validation_responses: int
    prompt: float  # mean tokens
    response: float  # mean tokens
    longest_prompt: int
    longest_response: int
    steps: int
    validations: int

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return self.longest_prompt + self.longest_response


def shape_of(run: RunSpec) -> ModelShape:
    """The shape of a published model, or of one of our own models."""
    model = run.model
    if isinstance(model, HubModel):
        return ModelShape(
            model.parameters * 1e9,
            model.active_parameters * 1e9,
            model.layers,
            model.width,
            model.kv_width,
            model.vocabulary,
        )
    assert isinstance(model, SyntheticModel)
    return _made_shape(model, run.data)


def _made_shape(model: SyntheticModel, data: object) -> ModelShape:
    assert isinstance(data, TaskData)
    sizes = model.architecture
    vocabulary = data.modulus * data.spellings + 6  # numbers, and a few symbols
    attention = sizes.width * sizes.head_dim * 2 * (sizes.heads + sizes.kv_heads)
    parameters = sizes.layers * (attention + 3 * sizes.width * sizes.mlp_width) + vocabulary * sizes.width
    return ModelShape(
        parameters, parameters, sizes.layers, sizes.width, sizes.kv_heads * sizes.head_dim, vocabulary
    )


def amounts_of(run: RunSpec) -> Amounts:
    """The tokens of a run, by the paper's mean response lengths where it has them."""
    data, longest = run.data, run.rollout.max_response_length
    if isinstance(data, TaskData):
        problems, prompt, longest_prompt = (
            data.validation_problems,
            float(data.prompt_length),
            data.prompt_length,
        )
        response = float(min(data.worked_length, longest))
    else:
        assert isinstance(data, MathData)
        problems, prompt, longest_prompt = (
            PROBLEMS_PER_BENCHMARK,
            float(PROMPT_TOKENS),
            data.max_prompt_length,
        )
        repository = run.model.repository if isinstance(run.model, HubModel) else ""
        response = float(min(MEAN_RESPONSE.get(repository, MEAN_SHARE * longest), longest))
    return Amounts(
        responses=run.batch.prompts * run.batch.responses,
        validation_responses=len(data.benchmarks) * problems * run.validation.samples,
        prompt=prompt,
        response=response,
        longest_prompt=longest_prompt,
        longest_response=longest,
        steps=run.training.t_stop,
        validations=run.training.t_stop // run.validation.every + 1,  # and before the first step
    )
