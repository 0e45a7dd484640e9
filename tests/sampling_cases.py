"""What the samplers of every device are tried on."""

from __future__ import annotations

from hypothesis import strategies as st

from mtpx.sampling import Sampling

VOCAB = 12

samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 12, 50]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repeat_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.6, -0.4]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
)
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=8)
# Few distinct values, so that ties at a filter's edge are common.
logits = st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0]), min_size=VOCAB, max_size=VOCAB)
