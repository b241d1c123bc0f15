"""The table of the models' details: as printed, next to our presets."""

from __future__ import annotations

from bfpp.paper.item import Folder, ItemOutput, PaperTable
from bfpp.sim.models.model import load_model

PRINTED = {"bert-52b": (64, 64, 128, 8192, 1024), "bert-6.6b": (32, 32, 128, 4096, 1024)}
COLUMNS = ("layers", "attention heads", "head size", "hidden size", "sequence length")


def make(folder: Folder) -> ItemOutput:
    """Put the presets next to the printed numbers."""
    rows, agree = [], []
    for name, printed in PRINTED.items():
        model = load_model(name)
        head = model.hidden // model.heads
        ours = (model.layers, model.heads, head, model.hidden, model.sequence)
        agree.append(ours == printed)
        rows.append(
            [name, *(f"{here} ({there})" for here, there in zip(ours, printed, strict=True))]
        )
    table = PaperTable("The models: ours (as printed)", ["model", *COLUMNS], rows)
    path = folder / "table-models.md"
    table.write(path)
    sentence = "All numbers agree." if all(agree) else "Some numbers differ."
    return ItemOutput([path], {"agree": all(agree)}, table, sentence)
