"""The decoding loop: pure functions of arrays. Nothing but jax, numpy and chex is known here.

Axis letters, the same wherever this library speaks of shapes:

    B  rows of the batch                T  positions of the canvas
    P  positions of a prompt            G  positions of an answer, `gen_length`
    N  blocks of an answer              L  positions of the longest block
    W  positions of the window          Q  query positions of a pass
    Y  positions of a target            F  forward passes, at most G
    V  vocabulary                       D  width of the model
    K  tokens kept of a distribution    A  tokens kept of a committed position
    C  tokens chosen by their ids       E  pairs of positions
    M  heads of queries                 S  heads of keys and values
    H  size of a head
"""
