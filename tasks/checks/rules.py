"""All rules, in one tuple: id, the level that reads enough for it, default severity, and what it reads.

A severity can be changed per run (check_draft(severities={"CFG008": "warning"})); a rule cannot be switched off.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tasks.checks import (
    rules_aux,
    rules_config,
    rules_decoder,
    rules_files,
    rules_publish,
    rules_target,
    rules_tensors,
    rules_training,
    rules_values,
    rules_vocabulary,
)
from tasks.checks.evidence import Evidence
from tasks.checks.finding import Finding
from tasks.checks.verdict import LEVELS, CheckResult, Level, Severity

Need = Literal["config", "eagle3", "sizes", "weights", "map", "target"]
Judge = Callable[[Evidence], Iterable[Finding]]

CONFIG = "config.json"
HEADERS = "safetensors headers"
BOTH = "config.json, safetensors headers"
TARGET = "config.json, the target's config"
MAPS = "d2t, t2d"
FILES = "file names and sizes"
STATE = "training_state.json, val_metrics.json"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; judge yields what it found, nothing meaning that all is well."""

    id: str
    level: Level
    severity: Severity
    read: str
    judge: Judge
    needs: tuple[Need, ...] = ()

    @property
    def title(self) -> str:
        """Return the rule in one line, from its docstring."""
        text = (self.judge.__doc__ or "").split("\n\n", 1)[0].removeprefix(f"{self.id}: ")
        return " ".join(text.split())


_C: tuple[Need, ...] = ("config",)
_A: tuple[Need, ...] = ("config", "eagle3")
_S: tuple[Need, ...] = ("config", "sizes")
_W: tuple[Need, ...] = ("config", "sizes", "weights")
_T: tuple[Need, ...] = ("config", "target")
_M: tuple[Need, ...] = ("config", "sizes", "weights", "map")

RULES: tuple[Rule, ...] = (
    Rule("CFG001", "header", "error", CONFIG, rules_config.config_is_json),
    Rule("CFG002", "header", "error", CONFIG, rules_config.layout_is_known),
    Rule("CFG003", "header", "error", CONFIG, rules_config.no_top_level_model_type, _C),
    Rule("CFG004", "header", "error", CONFIG, rules_config.algorithm_is_eagle3, _C),
    Rule("CFG005", "header", "error", CONFIG, rules_config.decoder_fields_are_flat, _C),
    Rule("CFG006", "header", "error", CONFIG, rules_config.decoder_is_supported, _C),
    Rule("CFG007", "header", "error", CONFIG, rules_publish.serves_alone, _C),
    Rule("CFG008", "header", "error", CONFIG, rules_publish.verifier_travels, _C),
    Rule("CFG009", "header", "warning", CONFIG, rules_config.norm_flags_are_explicit, _C),
    Rule("CFG010", "header", "error", CONFIG, rules_config.one_fusion_norm, _C),
    Rule("CFG011", "header", "error", BOTH, rules_config.not_quantised_by_accident, _C),
    Rule("CFG012", "header", "error", CONFIG, rules_decoder.layer_types_fit, _C),
    Rule("CFG013", "header", "warning", CONFIG, rules_decoder.window_covers_context, _C),
    Rule("CFG014", "header", "warning", TARGET, rules_decoder.rotary_matches_target, _T),
    Rule("CFG015", "header", "error", CONFIG, rules_decoder.heads_divide, _S),
    Rule("CFG016", "header", "error", CONFIG, rules_decoder.not_tied, _S),
    Rule("AUX001", "header", "error", CONFIG, rules_aux.ids_are_explicit, _A),
    Rule("AUX002", "header", "error", TARGET, rules_aux.ids_exist, _A),
    Rule("AUX003", "header", "error", BOTH, rules_aux.fc_takes_what_is_supplied, _W),
    Rule(
        "AUX004", "header", "error", "config.json, the extraction's record", rules_aux.ids_are_those_of_extraction, _A
    ),
    Rule("AUX005", "header", "warning", CONFIG, rules_aux.ids_are_top_level, _A),
    Rule("FIL001", "header", "error", FILES, rules_files.weights_are_there),
    Rule("FIL002", "header", "error", HEADERS, rules_files.weights_are_whole),
    Rule("FIL003", "header", "error", FILES, rules_files.one_weight_set),
    Rule("FIL004", "header", "warning", FILES, rules_files.no_training_state),
    Rule("FIL005", "header", "warning", FILES, rules_files.no_custom_code),
    Rule("TEN001", "header", "error", BOTH, rules_tensors.required_are_present, _W),
    Rule("TEN002", "header", "error", BOTH, rules_tensors.no_unknown_names, _W),
    Rule("TEN003", "header", "error", BOTH, rules_tensors.shapes_are_exact, _W),
    Rule("TEN004", "header", "error", HEADERS, rules_tensors.names_are_bare, _W),
    Rule("TEN005", "header", "error", BOTH, rules_tensors.flags_match_tensors, _W),
    Rule("TEN006", "header", "error", BOTH, rules_tensors.head_fits, _W),
    Rule("TEN007", "header", "error", BOTH, rules_tensors.embedding_fits, _W),
    Rule("TEN008", "header", "error", BOTH, rules_tensors.dtypes_are_served, ("weights",)),
    Rule("TEN009", "header", "note", HEADERS, rules_tensors.size_is_plausible, ("weights",)),
    Rule("TEN010", "small", "error", "tensor values", rules_values.values_are_finite, ("weights",)),
    Rule("TEN011", "full", "warning", "tensor values", rules_values.values_vary, ("weights",)),
    Rule("TEN012", "full", "warning", "all bytes", rules_values.bytes_are_new, ("weights",)),
    Rule("VOC001", "header", "error", TARGET, rules_vocabulary.vocabularies_fit, _C),
    Rule("VOC002", "header", "error", BOTH, rules_vocabulary.map_is_there, _W),
    Rule("VOC003", "small", "error", MAPS, rules_vocabulary.offsets_are_right, _M),
    Rule("VOC004", "small", "warning", MAPS, rules_vocabulary.offsets_are_sorted, _M),
    Rule("VOC005", "small", "error", MAPS, rules_vocabulary.maps_agree, _M),
    Rule("VOC006", "small", "warning", MAPS, rules_vocabulary.end_can_be_drafted, (*_M, "target")),
    Rule("VOC007", "small", "warning", MAPS, rules_vocabulary.vocabulary_was_chosen, _M),
    Rule("VOC008", "header", "error", BOTH, rules_vocabulary.map_has_right_form, _W),
    Rule("TGT001", "header", "error", TARGET, rules_target.target_class_supports_eagle3, ("target",)),
    Rule("TGT002", "header", "error", TARGET, rules_target.widths_match, ("config", "sizes", "target")),
    Rule("TGT003", "full", "warning", "embed_tokens", rules_target.embedding_is_the_targets, ("weights", "target")),
    Rule("TGT004", "header", "warning", TARGET, rules_target.target_is_the_trained_one, _T),
    Rule("TGT005", "full", "note", "lm_head", rules_target.head_is_the_targets, ("weights", "target")),
    Rule("TRN001", "header", "error", STATE, rules_training.save_was_finished),
    Rule("TRN002", "header", "warning", STATE, rules_training.epoch_is_whole),
    Rule("TRN003", "header", "warning", "links of the run", rules_training.links_resolve),
    Rule("TRN004", "header", "warning", STATE, rules_training.metrics_are_there),
    Rule("TRN005", "header", "warning", CONFIG, rules_training.version_is_known, _C),
    Rule("TRN006", "header", "error", STATE, rules_training.metrics_are_finite),
)


# Judged by starting the engine (tasks/checks/live.py), never from bytes.
ENGINE_RULES: Mapping[str, str] = {
    "RUN001": "the engine starts with the draft and answers a greedy request",
    "RUN002": "draft tokens are accepted in 500 steps",
    "RUN003": "the acceptance length is what training predicted",
    "RUN004": "the engine uses the layers that the config names",
}


def applied(rule: Rule, evidence: Evidence, severities: Mapping[str, Severity]) -> list[CheckResult]:
    """Return what a rule says about a draft: at least one result."""
    reason = _not_at_hand(rule, evidence)
    findings = [Finding("skipped", reason)] if reason else list(rule.judge(evidence))
    forced = severities.get(rule.id)
    return [
        CheckResult(
            rule=rule.id,
            severity=forced or finding.severity or rule.severity,
            outcome=finding.outcome,
            message=finding.message,
            observed=finding.observed,
            expected=finding.expected,
            mend=finding.mend,
            read=rule.read,
        )
        for finding in findings or [Finding("pass", rule.title)]
    ]


def _not_at_hand(rule: Rule, evidence: Evidence) -> str:
    missing: dict[Need, tuple[bool, str]] = {
        "config": (evidence.config.layout == "unknown", "config.json could not be used"),
        "eagle3": (not evidence.config.is_eagle3, "the algorithm is not eagle3"),
        "sizes": (evidence.wanted is None, "the config does not give all sizes of an eagle3 draft"),
        "weights": (not evidence.weights.is_sound, "the weights could not be read"),
        "map": (evidence.maps.ids_D is None or not evidence.is_pruned, "there is no readable d2t, or none is needed"),
        "target": (evidence.target is None, "no target was given"),
    }
    return next((missing[need][1] for need in rule.needs if missing[need][0]), "")


def rules_of(level: Level) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    """Return the rules that a level checks, and those that it leaves out."""
    depth = LEVELS.index(level)
    inside = tuple(rule for rule in RULES if LEVELS.index(rule.level) <= depth)
    return inside, tuple(rule for rule in RULES if rule not in inside)
