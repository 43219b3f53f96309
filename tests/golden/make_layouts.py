"""Makes the golden data of the folders `illada`, `qwen2` and `qwen3`, with PyTorch, transformers and PEFT.

    python tests/golden/make_layouts.py          # torch 2.13.0, transformers 5.23.0, peft 0.21.2

The layers are those of transformers, in float64, with a mask that hides nothing in place of the causal one.
transformers has no iLLaDA; its layers are Llama's, by the code that is published with the model.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

HERE = Path(__file__).parent
MASK, LENGTH, BATCH = 5, 24, 2
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "attn_implementation": "eager",
}
# As the older releases of transformers write them, with which the published models were saved.
PUBLISHED = {name: size for name, size in SIZES.items() if name != "attn_implementation"}


def rope(theta: float) -> dict[str, Any]:
    """Plain RoPE, as the newer releases of transformers take it."""
    return {"rope_type": "default", "rope_theta": theta}


def randomised(model: Any) -> Any:
    """The same model in float64, every weight drawn so large that each matters; float32 holds them."""
    for name, weight in model.named_parameters():
        about = 1.0 if "norm" in name else 0.0
        weight.data = (about + 0.25 * torch.randn_like(weight)).float().double()
    return model.eval()


@torch.no_grad()
def forward(model: Any) -> dict[str, torch.Tensor]:
    """Ids, some of them the mask, and the logits that the model gives them without a causal mask."""
    ids = torch.randint(6, SIZES["vocab_size"], (BATCH, LENGTH))
    ids[:, LENGTH // 2 :][torch.rand(BATCH, LENGTH - LENGTH // 2) < 0.7] = MASK
    see_all = torch.zeros(BATCH, 1, LENGTH, LENGTH, dtype=torch.float64)

    def run(ids: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, attention_mask=see_all, use_cache=False).logits

    changed = ids.clone()
    changed[:, -1] = 7
    assert (run(ids)[:, 0] - run(changed)[:, 0]).abs().max() > 1e-2, "not bidirectional"
    return {"input_ids": ids.int(), "logits": run(ids).float()}


def write(name: str, model: Any, config: dict[str, Any], *, head: bool) -> Path:
    """A checkpoint with its logits; `head`: with the copy of the embedding that some publish."""
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    tensors = {key: weight.float().clone() for key, weight in model.state_dict().items()}
    if not head:
        del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    save_file(forward(model), folder / "forward.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder


def write_adapter(model: Any, folder: Path) -> None:
    """A LoRA adapter as PEFT saves it, and the weights that PEFT merges from it."""
    ranks = {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"layers.1.mlp.down_proj": 12}}
    config = LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"], **ranks)
    adapted = get_peft_model(model.float(), config)
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            weight.data = 0.2 * torch.randn_like(weight)
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink()
    merged = adapted.merge_and_unload().state_dict()
    targets = ("q_proj.weight", "v_proj.weight", "down_proj.weight")
    save_file(
        {key: weight.float().contiguous() for key, weight in merged.items() if key.endswith(targets)},
        folder / "merged.safetensors",
    )


def main() -> None:
    """Writes the three folders."""
    torch.manual_seed(0)
    illada = randomised(
        LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=rope(500000.0), rms_norm_eps=1e-5))
    )
    config = {"architectures": ["ILLaDAForCausalLM"], "model_type": "illada", **PUBLISHED}
    more = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "layer_norm_eps": None}
    numbers = {"rope_theta": 500000.0, "rope_scaling": None, "rms_norm_eps": 1e-5, "torch_dtype": "float32"}
    write("illada", illada, {**config, **more, **numbers}, head=True)

    qwen2 = randomised(Qwen2ForCausalLM(Qwen2Config(**SIZES, rope_parameters=rope(1e6))))
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **PUBLISHED}
    more = {"hidden_act": "silu", "rope_theta": 1e6, "rms_norm_eps": 1e-6, "use_sliding_window": False}
    folder = write("qwen2", qwen2, {**config, **more, "sliding_window": None}, head=False)
    shutil.rmtree(folder / "adapter", ignore_errors=True)
    write_adapter(qwen2, folder / "adapter")

    qwen3 = randomised(Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16, rope_parameters=rope(1e6))))
    config = json.loads(qwen3.config.to_json_string())  # as the newer releases write it
    config |= {"architectures": ["A2DQwen3LMHeadModel"], "model_type": "a2d-qwen3", "mask_token_id": MASK}
    write("qwen3", qwen3, config, head=True)


if __name__ == "__main__":
    main()
