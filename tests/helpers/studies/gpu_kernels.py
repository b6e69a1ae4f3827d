"""Kernels of lesson 03 as a reader writes them, and arrays for them."""

from __future__ import annotations

import math

import numpy as np


def ones(*shape):
    return np.ones(shape, np.float32)


def numbered(*shape):
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


def saxpy(thread, a, x, y):
    i = thread.block_x * thread.block_width + thread.thread_x
    if i < len(x):
        y[i] = a * x[i] + y[i]


def one_line(thread, source, target):
    target[thread.x, thread.y] = source[thread.y, thread.x]


def through_tile(words):
    def transpose(thread, source, target):
        tile = thread.shared("tile", 32, words)
        tile[thread.thread_y, thread.thread_x] = source[thread.y, thread.x]
        yield
        x = 32 * thread.block_y + thread.thread_x
        y = 32 * thread.block_x + thread.thread_y
        target[y, x] = tile[thread.thread_x, thread.thread_y]

    return transpose


def four_values(thread, source, target):
    tile = thread.shared("tile", 32, 33)
    column, row = 32 * thread.block_x + thread.thread_x, 32 * thread.block_y + thread.thread_y
    for j in range(0, 32, 8):
        tile[thread.thread_y + j, thread.thread_x] = source[row + j, column]
    yield
    column, row = 32 * thread.block_y + thread.thread_x, 32 * thread.block_x + thread.thread_y
    for j in range(0, 32, 8):
        target[row + j, column] = tile[thread.thread_x, thread.thread_y + j]
