//! Monitors of descriptors: each watches many, and tells which are ready.
//!
//! A monitor has the functions of [`Epoll`], in its order: `watch`, `unwatch`, `wait`.

mod epoll;

pub(super) use epoll::Epoll;
