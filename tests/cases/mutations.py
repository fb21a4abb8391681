"""One broken draft per line: what is changed, which rule must speak, how loudly, and what vLLM 0.32 does with it.

engine: "loads" (and serves without a word), "refuses" (an error while loading), or "" where only a running engine, a
trainer or another reader would show the fault.
"""

from dataclasses import dataclass

import numpy as np

from tests.cases.changes import (
    Change,
    block,
    both,
    config,
    decoder,
    drop,
    file,
    marks,
    methods,
    no_config,
    offsets,
    pattern,
    prefix,
    rename,
    retype,
    tensor,
    verifier,
)
from tests.cases.tiny import (
    INTERMEDIATE,
    D,
    H,
    Raw,
    V,
    bf16,
    draft_ids,
    draft_tensors,
    layer_tensors,
)


@dataclass(frozen=True)
class Mutation:
    """One change to a good draft, and what must come of it."""

    name: str
    change: Change
    rule: str
    outcome: str = "FAIL"
    engine: str = ""
    words: str = ""


IDS = draft_ids()
NO_END = np.arange(3, V, 4)[:D]
Q, K, V_ = (f"layers.0.self_attn.{one}_proj.weight" for one in "qkv")
GATE, DOWN = "layers.0.mlp.gate_proj.weight", "layers.0.mlp.down_proj.weight"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation("config is text", file("config.json", b"not json"), "CFG001"),
    Mutation("config is a list", file("config.json", b"[1, 2]"), "CFG001"),
    Mutation("config is empty", file("config.json", b""), "CFG001", words="empty"),
    Mutation("no layout", no_config("speculators_config", "speculators_model_type"), "CFG002", engine="refuses"),
    Mutation("top-level model_type", config(model_type="speculator_model"), "CFG003", engine="refuses"),
    Mutation("another algorithm", config(speculators_model_type="dflash"), "CFG004", words="dflash draft"),
    Mutation("unknown algorithm", config(speculators_model_type="medusa"), "CFG004", engine="refuses"),
    Mutation("no decoder", no_config("transformer_layer_config"), "CFG005", engine="refuses"),
    Mutation("decoder is null", config(transformer_layer_config=None), "CFG005", engine="refuses"),
    Mutation(
        "nested decoder",
        lambda draft: draft.config.update(transformer_layer_config={"text_config": dict(draft.decoder)}),
        "CFG005",
        engine="refuses",
        words="nested under text_config",
    ),
    Mutation("no hidden_size", lambda draft: draft.decoder.pop("hidden_size"), "CFG005", engine="refuses"),
    Mutation("hidden_size is text", decoder(hidden_size="64"), "CFG005"),
    Mutation("negative heads", decoder(num_attention_heads=-2), "CFG005"),
    Mutation("draft vocabulary is text", config(draft_vocab_size="32"), "CFG005"),
    Mutation("gemma decoder", decoder(model_type="gemma3_text"), "CFG006", engine="refuses"),
    Mutation("no proposal method", methods([]), "CFG007"),
    Mutation("no speculative tokens", methods([{"proposal_type": "greedy"}]), "CFG007"),
    Mutation("no verifier", verifier(None), "CFG007"),
    Mutation("empty verifier name", verifier({"name_or_path": ""}), "CFG007"),
    Mutation("path of another machine", verifier({"name_or_path": "/data/models/target"}), "CFG008"),
    Mutation("path of another system", verifier({"name_or_path": "C:\\models\\target"}), "CFG008"),
    Mutation("residual flag not written", no_config("norm_before_residual"), "CFG009", "WARN", "loads"),
    Mutation("flag is text", config(norm_before_fc="false"), "CFG009", words="takes it as True"),
    Mutation("both fusion norms", config(norm_before_fc=True, fc_norm=True), "CFG010"),
    Mutation(
        "inherited quantisation",
        decoder(quantization_config={"quant_method": "compressed-tensors", "config_groups": {}}),
        "CFG011",
        words="compressed-tensors",
    ),
    Mutation("layer types too many", decoder(layer_types=["full_attention"] * 2), "CFG012"),
    Mutation("narrow window", decoder(layer_types=["sliding_attention"], sliding_window=16), "CFG013", "WARN", "loads"),
    Mutation(
        "another rope", decoder(rope_parameters={"rope_theta": 5e5, "rope_type": "default"}), "CFG014", "WARN", "loads"
    ),
    Mutation("another epsilon", decoder(rms_norm_eps=1e-5), "CFG014", "WARN", "loads"),
    Mutation("heads do not divide", decoder(num_attention_heads=3, num_key_value_heads=2), "CFG015"),
    Mutation("tied head", config(tie_word_embeddings=True), "CFG016", engine="loads"),
    Mutation("tied head in the decoder", decoder(tie_word_embeddings=True), "CFG016", engine="loads"),
    Mutation("no layer ids", no_config("eagle_aux_hidden_state_layer_ids"), "AUX001", engine="loads"),
    Mutation("empty layer ids", config(eagle_aux_hidden_state_layer_ids=[]), "AUX001"),
    Mutation("layer ids are text", config(eagle_aux_hidden_state_layer_ids=["2", "3", "4"]), "AUX001"),
    Mutation("layer id twice", config(eagle_aux_hidden_state_layer_ids=[2, 2, 4]), "AUX002", engine="loads"),
    Mutation("layer id beyond", config(eagle_aux_hidden_state_layer_ids=[2, 3, 7]), "AUX002", engine="loads"),
    Mutation("layer id negative", config(eagle_aux_hidden_state_layer_ids=[-1, 3, 4]), "AUX002", engine="loads"),
    Mutation(
        "four layers, not counted",
        both(
            config(eagle_aux_hidden_state_layer_ids=[2, 3, 4, 6]),
            tensor("fc.weight", draft_tensors(num_aux=4)["fc.weight"]),
        ),
        "AUX003",
        engine="refuses",
        words="num_aux_hidden_states: 4",
    ),
    Mutation("two ids for three", config(eagle_aux_hidden_state_layer_ids=[2, 4]), "AUX003", engine="loads"),
    Mutation("fc too narrow", tensor("fc.weight", bf16((H, 2 * H), 1)), "AUX003", engine="refuses"),
    Mutation(
        "nested ids only",
        both(
            no_config("eagle_aux_hidden_state_layer_ids"),
            decoder(eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 3, 4]}),
        ),
        "AUX005",
        "WARN",
        "loads",
    ),
    Mutation("no fc", drop("fc.weight"), "TEN001", engine="loads"),
    Mutation("no down_proj", drop(DOWN), "TEN001", engine="loads"),
    Mutation("no k_proj", drop(K), "TEN001", engine="loads"),
    Mutation("no norm", drop("norm.weight"), "TEN001", engine="loads"),
    Mutation("no hidden_norm", drop("layers.0.hidden_norm.weight"), "TEN001", engine="loads"),
    Mutation("no input_layernorm", drop("layers.0.input_layernorm.weight"), "TEN001", engine="loads"),
    Mutation("second layer missing", decoder(num_hidden_layers=2), "TEN001", engine="loads"),
    Mutation("trainer's own tensor", tensor("verifier_norm.weight", bf16((H,), 1)), "TEN002", engine="refuses"),
    Mutation("a layer too many", lambda draft: draft.tensors.update(layer_tensors(1)), "TEN002", engine="refuses"),
    Mutation("head under another name", rename("lm_head.weight", "head.weight"), "TEN002", engine="refuses"),
    Mutation("q twice as high", tensor(Q, bf16((128, 2 * H), 1)), "TEN003", engine="loads"),
    Mutation("k twice as high", tensor(K, bf16((64, 2 * H), 1)), "TEN003", engine="loads"),
    Mutation("gate twice as high", tensor(GATE, bf16((2 * INTERMEDIATE, H), 1)), "TEN003", engine="loads"),
    Mutation("down twice as wide", tensor(DOWN, bf16((H, 2 * INTERMEDIATE), 1)), "TEN003", engine="loads"),
    Mutation("q without the embedding half", tensor(Q, bf16((64, H), 1)), "TEN003", engine="refuses"),
    Mutation("smaller intermediate_size", decoder(intermediate_size=48), "TEN003", engine="loads"),
    Mutation("norm of two dimensions", tensor("norm.weight", bf16((1, H), 1)), "TEN003", engine="refuses"),
    Mutation("fc with too few rows", tensor("fc.weight", bf16((32, 3 * H), 1)), "TEN003", engine="refuses"),
    Mutation("engine's prefix", prefix("model."), "TEN004", engine="refuses"),
    Mutation("data-parallel prefix", prefix("module."), "TEN004", engine="refuses"),
    Mutation("compiler's prefix", prefix("_orig_mod."), "TEN004", engine="refuses"),
    Mutation("input_norm without flag", tensor("input_norm.weight", bf16((3 * H,), 1)), "TEN005", engine="loads"),
    Mutation("norm_before_fc without tensor", config(norm_before_fc=True), "TEN005", engine="loads"),
    Mutation("fc_norm without tensors", config(fc_norm=True), "TEN005", engine="loads"),
    Mutation("fc_norm without flag", tensor("fc_norm.0.weight", bf16((H,), 1)), "TEN005", engine="refuses"),
    Mutation("bias without flag", tensor(Q.replace("weight", "bias"), bf16((64,), 1)), "TEN005", engine="loads"),
    Mutation("attention_bias without tensors", decoder(attention_bias=True), "TEN005", engine="loads"),
    Mutation("qwen3 without q_norm", decoder(model_type="qwen3"), "TEN005", engine="loads"),
    Mutation("no head", drop("lm_head.weight"), "TEN006", engine="loads"),
    Mutation("head of another length", tensor("lm_head.weight", bf16((D + 8, H), 1)), "TEN006", engine="refuses"),
    Mutation("embedding too short", tensor("embed_tokens.weight", bf16((150, H), 1)), "TEN007", engine="refuses"),
    Mutation("fp8 without scales", retype("F8_E4M3", 1, "fc.weight"), "TEN008", engine="loads"),
    Mutation("fp32 head", retype("F32", 4, GATE), "TEN008", "WARN", "loads"),
    Mutation("declared fp32", config(dtype="float32"), "TEN008", "WARN", "loads"),
    Mutation("one NaN", pattern("fc.weight", 77, 0x7FC0), "TEN010", engine="loads"),
    Mutation("one infinity", pattern(Q, 5, 0xFF80), "TEN010", engine="loads"),
    Mutation("NaN in a norm", pattern("norm.weight", 3, 0xFFFF), "TEN010", engine="loads"),
    Mutation(
        "all zero", tensor(DOWN, Raw("BF16", (H, INTERMEDIATE), bytes(2 * H * INTERMEDIATE))), "TEN011", "WARN", "loads"
    ),
    Mutation("norm of zeros", tensor("norm.weight", Raw("BF16", (H,), bytes(2 * H))), "TEN011", "WARN", "loads"),
    Mutation("draft larger than target", config(draft_vocab_size=V + 1), "VOC001"),
    Mutation("vocabulary off by one", decoder(vocab_size=V + 1), "VOC001"),
    Mutation("no d2t", drop("d2t"), "VOC002", engine="loads"),
    Mutation("d2t beside a full vocabulary", no_config("draft_vocab_size"), "VOC002", engine="refuses"),
    Mutation("absolute ids", offsets(IDS), "VOC003", engine="loads", words="absolute ids, expected offsets"),
    Mutation("absolute ids, no t2d", both(offsets(IDS), drop("t2d")), "VOC003", engine="loads", words="absolute ids"),
    Mutation("id out of range", offsets([*(IDS - np.arange(D))[:-1], V]), "VOC003", engine="loads"),
    Mutation("negative id", offsets([-5, *(IDS - np.arange(D))[1:]]), "VOC003", engine="loads"),
    Mutation("id twice", both(offsets([IDS[1], *(IDS - np.arange(D))[1:]]), drop("t2d")), "VOC003", engine="loads"),
    Mutation("not sorted", offsets(IDS[::-1] - np.arange(D)), "VOC004", "WARN", "loads"),
    Mutation("another t2d", tensor("t2d", marks(np.arange(40, 40 + D))), "VOC005", engine="loads"),
    Mutation("t2d with one mark more", tensor("t2d", marks([*IDS, 159, 158])), "VOC005", engine="loads"),
    Mutation("map without special ids", block(3), "VOC006", "WARN", "loads"),
    Mutation(
        "end left out, another special id kept",
        both(offsets(np.array([1, *NO_END[1:]]) - np.arange(D)), tensor("t2d", marks([1, *NO_END[1:]]))),
        "VOC006",
        "WARN",
        "loads",
    ),
    Mutation("first ids", block(0), "VOC007", "WARN", "loads"),
    Mutation("zeros under another t2d", offsets([0] * D), "VOC005", engine="loads"),
    Mutation("d2t of floats", tensor("d2t", bf16((D,), 1)), "VOC008"),
    Mutation("d2t too short", offsets((IDS - np.arange(D))[:-1]), "VOC008", engine="refuses"),
    Mutation("t2d of the tokenizer's length", tensor("t2d", marks(IDS[IDS < 150], 150)), "VOC008", engine="loads"),
    Mutation("t2d of bytes", tensor("t2d", Raw("U8", (V,), bytes(V))), "VOC008", engine="loads"),
    Mutation(
        "embedding is not the target's", tensor("embed_tokens.weight", bf16((V, H), 99)), "TGT003", engine="loads"
    ),
    Mutation("embedding differs in one row", pattern("embed_tokens.weight", 77 * H, 0x3F80), "TGT003", engine="loads"),
    Mutation(
        "another target's class",
        verifier({"name_or_path": "a/b", "architectures": ["PhiForCausalLM"]}),
        "TGT004",
        "WARN",
    ),
    Mutation("narrow draft", config(target_hidden_size=32), "TGT002"),
    Mutation("broken training state", file("training_state.json", b"{"), "TRN001"),
    Mutation("middle of an epoch", file("training_state.json", b'{"epoch": 0, "local_step": 7}'), "TRN002", "WARN"),
    Mutation(
        "broken metrics", both(file("training_state.json", b"{}"), file("val_metrics.json", b"x")), "TRN004", "WARN"
    ),
    Mutation("unknown version", config(speculators_version="1.4.0"), "TRN005", "WARN"),
    Mutation("version is a number", config(speculators_version=9), "TRN005", "WARN"),
    Mutation("NaN in the metrics", file("val_metrics.json", b'{"loss_epoch": NaN}'), "TRN006"),
    Mutation("optimizer shipped", file("optimizer_state_dict.pt", b"x" * 50), "FIL004", "WARN", words="50 bytes"),
    Mutation("pickle shipped", file("pytorch_model.bin", b"x"), "FIL004", "WARN"),
    Mutation("code shipped", file("config.py", b"pass"), "FIL005", "WARN"),
    Mutation("auto_map", config(auto_map={"AutoModel": "x.Y"}), "FIL005", "WARN", "loads"),
    Mutation("second weight file", file("extra.safetensors", b"\2\0\0\0\0\0\0\0{}"), "FIL003"),
)
