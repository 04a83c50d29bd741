"""The shuffled order of windows, written again from the description in runtime/data/sampler.hpp."""
WORD = (1 << 64) - 1


def mix(x):
    x = ((x ^ (x >> 30)) * 0xbf58476d1ce4e5b9) & WORD
    x = ((x ^ (x >> 27)) * 0x94d049bb133111eb) & WORD
    return x ^ (x >> 31)


def shuffled_window(cursor, count, seed):
    half = max(4, ((count - 1).bit_length() + 1) // 2)
    key = mix((mix((seed + 0x9e3779b97f4a7c15) & WORD) + cursor // count) & WORD)
    word = cursor % count
    while True:
        left, right = word >> half, word & ((1 << half) - 1)
        for step in range(8):
            scatter = mix((right + mix((key + step * 0x9e3779b97f4a7c15) & WORD)) & WORD)
            left, right = right, left ^ (scatter & ((1 << half) - 1))
        word = left << half | right
        if word < count:
            return word
