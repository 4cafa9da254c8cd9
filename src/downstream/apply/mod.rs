/// x
pub const CREATE_ONLY: &str = "1";
