"""What the tests of the page share: names and a prompt full of markup, and a traced decode."""

from __future__ import annotations

from typing import Any

import numpy as np
from small_models import small_model

import depcap_jax as dc

EVIL = "<script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"
PROMPT = f"what {EVIL} & 'why'?"
NAMES = ["depcap", EVIL]


def traced(name: str, gen_length: int, prompt_length: int, **settings: Any) -> dc.DecodeResult:
    config = dc.recipe(name, gen_length=gen_length, stop_at_eos=False, **settings)
    ids = np.random.default_rng(7).integers(0, 500, (1, max(prompt_length, 1)))
    model = small_model("llada")
    return dc.generate(model, ids, np.array([prompt_length]), config=config, trace=True)
