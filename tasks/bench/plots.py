"""Two pictures: how a training went, and how often each draft position is accepted. Bytes of an SVG or a PNG.

Training rows are the metric lines of the training, sorted by step:

    {"split": "train", "epoch": 0, "step": 40, "lr": 0.0006, "loss": 5.1, "full_acc_0": 0.31, "full_acc_1": 0.09}
    {"split": "val", "epoch": 0, "step": 41, "loss": 4.2, "full_acc_0": 0.40, "full_acc_1": 0.15}

matplotlib is used through its objects, so that nothing of it
is global between two pictures of one process.
"""

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tasks.bench.measurement import Arm
from tasks.errors import EvidenceError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Format = Literal["svg", "png"]
Curve = list[tuple[float, float]]

# Okabe and Ito's palette, told apart in every common kind of colour blindness.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
_INK = "#333333"
_GRID = "#DDDDDD"
# Points of one curve after thinning: more cannot be told apart at 800 px, and only make the file bigger.
_MAX_POINTS = 120
_WIDTH_IN = 8.0
_DPI = 110
_MAX_VALUE_LABELS = 24
_LEGEND: dict[str, Any] = {"fontsize": 9, "edgecolor": "none", "facecolor": "white", "framealpha": 0.9}
# Text stays text (small, searchable), and ids do not change from one drawing to the next.
_SVG_STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "draftworks"}


def training_curves(rows: Iterable[Mapping[str, Any]], image_format: Format = "svg") -> bytes:
    """Return a picture of loss and accuracy per draft position over the training steps.

    Lines are training (thinned by averaging), circles are validation. Raises EvidenceError without any loss.
    """
    curves = _curves(rows)
    if not curves.get("train/loss") and not curves.get("val/loss"):
        raise EvidenceError(f"no training loss in the metrics, so nothing to draw; keys seen: {sorted(curves)[:8]}")
    figure = _figure(3.4)
    loss_axes, accuracy_axes = figure.subplots(1, 2)
    _draw_curve(loss_axes, curves, "loss", _COLOURS[0], ("training", "validation"))
    for position in _positions(curves):
        labels = (f"position {position + 1}", None)
        _draw_curve(accuracy_axes, curves, f"full_acc_{position}", _COLOURS[position % len(_COLOURS)], labels)
    _label(loss_axes, "Loss over all draft positions", "training step", "loss [nats]")
    _label(accuracy_axes, "Right up to this draft position", "training step", "accuracy [% of tokens]")
    accuracy_axes.set_ylim(bottom=0)
    for axes in (loss_axes, accuracy_axes):
        axes.set_xlim(left=0)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best", **_LEGEND)
    return _encoded(figure, image_format)


def acceptance_per_position(arms: Sequence[Arm], image_format: Format = "svg") -> bytes:
    """Return a bar picture of unconditional acceptance per draft position, for whole data sets, one colour for each.

    Raises EvidenceError when no arm has an acceptance.
    """
    measured = [arm for arm in arms if arm.acceptance]
    rates = {
        found.dataset if len(measured) == 1 else f"{found.dataset}, {arm.name}": found.per_position
        for arm in measured
        for found in arm.acceptance
        if "/" not in found.dataset
    }
    if not any(rates.values()):
        raise EvidenceError(f"no acceptance to draw: none of the {len(arms)} arms was measured with a draft")
    figure = _figure(3.2)
    axes = figure.subplots()
    _draw_bars(axes, rates)
    num_positions = max(len(found) for found in rates.values())
    _label(axes, "Draft tokens accepted, by position", "draft position", "accepted [% of verify steps]")
    axes.set_xticks(range(1, num_positions + 1))
    axes.set_ylim(0, max(10.0, 115 * max(max(found, default=0.0) for found in rates.values())))
    axes.legend(loc="upper right", **_LEGEND)
    return _encoded(figure, image_format)


def _draw_bars(axes: "Axes", rates: Mapping[str, Sequence[float]]) -> None:
    width = 0.8 / len(rates)
    has_room = sum(len(found) for found in rates.values()) <= _MAX_VALUE_LABELS
    for index, (label, found) in enumerate(rates.items()):
        places = [position + (index - (len(rates) - 1) / 2) * width for position in range(1, len(found) + 1)]
        bars = axes.bar(
            places,
            [100 * rate for rate in found],
            width * 0.92,
            color=_COLOURS[index % len(_COLOURS)],
            label=f"{label} (acceptance length {1 + sum(found):.2f})",
        )
        if has_room:
            axes.bar_label(bars, fmt="%.0f", padding=2, color=_INK, fontsize=9)


def _curves(rows: Iterable[Mapping[str, Any]]) -> dict[str, Curve]:
    """Return points by "split/metric"; a value that is missing or no finite number only leaves a gap."""
    curves: dict[str, Curve] = {}
    for row in rows:
        for key, value in row.items():
            if re.fullmatch(r"loss|full_acc_\d+", key) and value is not None and math.isfinite(value):
                curves.setdefault(f"{row['split']}/{key}", []).append((float(row["step"]), float(value)))
    return curves


def _positions(curves: Mapping[str, Curve]) -> list[int]:
    found = (re.fullmatch(r"(?:train|val)/full_acc_(\d+)", key) for key in curves)
    return sorted({int(match[1]) for match in found if match})


def _thinned(curve: Curve) -> Curve:
    """Return at most _MAX_POINTS points, each the mean of a run of neighbours."""
    run = math.ceil(len(curve) / _MAX_POINTS) or 1
    chunks = (curve[start : start + run] for start in range(0, len(curve), run))
    return [(sum(x for x, _ in chunk) / len(chunk), sum(y for _, y in chunk) / len(chunk)) for chunk in chunks]


def _draw_curve(
    axes: "Axes", curves: Mapping[str, Curve], name: str, colour: str, labels: tuple[str, str | None]
) -> None:
    scale = 100 if name.startswith("full_acc") else 1
    train, val = _thinned(curves.get(f"train/{name}", [])), _thinned(curves.get(f"val/{name}", []))
    if train:
        axes.plot([x for x, _ in train], [scale * y for _, y in train], color=colour, linewidth=1.2, label=labels[0])
    if val:
        axes.plot(
            [x for x, _ in val],
            [scale * y for _, y in val],
            color=colour,
            linestyle="",
            marker="o",
            markersize=6,
            markerfacecolor="white",
            markeredgewidth=1.6,
            label=labels[1] if train else labels[0],
        )


def _figure(height_in: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(_WIDTH_IN, height_in), dpi=_DPI, facecolor="white", layout="constrained")


def _label(axes: "Axes", title: str, x_label: str, y_label: str) -> None:
    axes.set_title(title, color=_INK, fontsize=11, loc="left")
    axes.set_xlabel(x_label, color=_INK)
    axes.set_ylabel(y_label, color=_INK)
    axes.tick_params(colors=_INK)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _encoded(figure: "Figure", image_format: Format) -> bytes:
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context(_SVG_STYLE):
        figure.savefig(buffer, format=image_format, metadata={"Date": None} if image_format == "svg" else None)
    return buffer.getvalue()
