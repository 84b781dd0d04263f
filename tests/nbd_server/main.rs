//! The example program `nbd_server` from outside, with clients that others wrote, and with one that has no manners.

#[path = "../common/mod.rs"]
mod common;

mod client;
mod hostile;
mod life;
mod server;
mod tools;
