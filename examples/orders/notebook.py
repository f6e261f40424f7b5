"""The notebook without Jupyter: run its cells in order, and keep what they print.

python -m examples.orders.notebook          runs orders.ipynb, and writes the outputs into it
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

__all__ = ["NOTEBOOK", "run_cells"]

NOTEBOOK = Path(__file__).with_name("orders.ipynb")


def run_cells(notebook: dict[str, Any], **replaced: object) -> dict[str, Any]:
    """Run the cells of code, and set their outputs; return the names that they have defined.

    A name in `replaced` keeps this value: a cell that would set it does not.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        lines = [
            f"{name} = {replaced[name]!r}\n"
            if (name := line.partition(" = ")[0]) in replaced
            else line
            for line in cell["source"]
        ]
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile("".join(lines), f"cell {count}", "exec"), names)  # noqa: S102  # our own
        cell["execution_count"] = count
        cell["outputs"] = _outputs(output.getvalue())
    return names


def _outputs(text: str) -> list[dict[str, Any]]:
    if not text:
        return []
    lines = text.splitlines(keepends=True)
    return [{"name": "stdout", "output_type": "stream", "text": lines}]


def main() -> None:
    """Run the notebook, and write it with its outputs."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    run_cells(notebook)
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    NOTEBOOK.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
