//! Every invariant, with a history that breaks it.
