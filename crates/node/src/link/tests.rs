//! Each rule of the link by itself.

mod breaches;
mod codec;
mod rules;
