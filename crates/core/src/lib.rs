mod ids;
pub use ids::*;
