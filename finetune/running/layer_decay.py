"""Layer-wise learning-rate decay: each layer learns at `decay` times the rate of the layer above it.

Exact: with 12 layers and decay .8 the head learns at 1, the top layer at .8, the bottom layer at
.8^12 = .0687, the embeddings at .8^13 = .0550. Google-research/electra (`model/optimization.py`, its issues 51 and 64)
skips a depth below the head, so that the top layer learns at .64 and the embeddings at .0440: the legacy form.
"""

import re


def layer_scale(name: str, num_layers: int, decay: float, legacy: bool = False) -> float:
    """Returns the factor on the learning rate of the parameter `name` of a task's model.

    Parameters below all layers or shared by them (embeddings, their projection, the relative position table) get
    the lowest factor.
    """
    if name.startswith("head."):
        return 1.0
    layer = re.search(r"\.layer\.(\d+)\.", name)
    below_head = num_layers - int(layer[1]) if layer else num_layers + 1
    return decay ** (below_head + legacy)
