"""The decoding loop: pure functions of arrays. Nothing but jax, numpy and chex is known here.

Axis letters, the same in every file of this room:

    B  rows of the batch             G  positions of an answer, `gen_length`
    T  positions of the canvas       L  positions of the longest block
    W  positions of the window       Q  query positions of a pass
    V  vocabulary                    D  width of the model
    K  tokens kept of a distribution N  blocks of an answer
    F  forward passes, at most G
"""
