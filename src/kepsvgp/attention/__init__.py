"""Self-attention layers with one signature: `forward(x, mask=None, *, num_samples, generator)`."""

from kepsvgp.attention.base import PenalisedAttention as PenalisedAttention
from kepsvgp.attention.base import Penalties as Penalties
from kepsvgp.attention.base import fixed_draws as fixed_draws
from kepsvgp.attention.kep import KEPAttention as KEPAttention
from kepsvgp.attention.parallel import mean_over_shards as mean_over_shards
from kepsvgp.attention.parallel import sequence_parallel as sequence_parallel
from kepsvgp.attention.primal import PrimalAttention as PrimalAttention
from kepsvgp.attention.sgpa import SGPAttention as SGPAttention
from kepsvgp.attention.softmax import SoftmaxAttention as SoftmaxAttention
