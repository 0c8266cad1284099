"""TransferQueue's five calls that the trainer makes, on a dict: no Ray, no servers."""

from typing import Any

import pytest
import torch
import transfer_queue
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu


class Queue:
    """Rows by key; a row has a tag and columns."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.tags: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[list[str], list[str]]] = []  # keys and columns of each `kv_batch_get`
        for name in ("kv_batch_get", "kv_batch_put", "kv_clear"):
            patch.setattr(transfer_queue, name, getattr(self, name))

    def kv_batch_get(
        self, keys: list[str], partition_id: str, select_fields: list[str] | None = None
    ) -> TensorDict:
        """As TransferQueue's; a column that is nowhere is left out."""
        rows = [self.rows[key] for key in keys]
        names = [name for name in select_fields or rows[0] if name in rows[0]]
        self.asked.append((keys, names))
        data: TensorDict = tu.list_of_dict_to_tensordict(
            [{name: row[name] for name in names} for row in rows]
        )
        return data

    def kv_batch_put(
        self, keys: list[str], partition_id: str, fields: Any = None, tags: list[dict[str, Any]] | None = None
    ) -> transfer_queue.KVBatchMeta:
        """As TransferQueue's."""
        for place, key in enumerate(keys):
            row = self.rows.setdefault(key, {})
            for name in fields.keys() if fields is not None else ():
                column = fields[name]
                row[name] = column.unbind()[place] if torch.is_tensor(column) else column[place]
            if tags is not None:
                self.tags[key] = tags[place]
        return transfer_queue.KVBatchMeta(
            keys=keys, tags=[self.tags[key] for key in keys], partition_id=partition_id
        )

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        """As TransferQueue's, which wants a key at least."""
        if not keys:
            raise ValueError("Received an empty list as keys.")
        for key in keys:
            del self.rows[key]
