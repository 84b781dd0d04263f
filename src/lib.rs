//! Stackful coroutines and an AioContext for block-layer code.
