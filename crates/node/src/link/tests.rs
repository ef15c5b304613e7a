//! Each rule of the link by itself.

mod breaches;
mod bus;
mod codec;
mod rules;
