//! Onboarding of a customer -> qualification -> block.

mod desk;
pub mod domain;
mod process;
pub mod state;

pub use desk::OnboardingDesk;
pub use process::OnboardingProcess;

/// The process type; stored with every instance.
pub const PROCESS: &str = "onboarding";

/// The input, from Kafka or from another module.
pub const ONBOARDING: &str = "OnboardingCustomer";
pub const QUALIFY_CUSTOMER: &str = "QualifyCustomer";
pub const CREATE_BLOCK: &str = "CreateBlock";
pub const CUSTOMER_QUALIFIED: &str = "CustomerQualified";
pub const CUSTOMER_REFUSED: &str = "CustomerRefused";
pub const BLOCK_CREATED: &str = "BlockCreated";

/// What the process goes on with.
pub const EVENTS: [&str; 3] = [CUSTOMER_QUALIFIED, CUSTOMER_REFUSED, BLOCK_CREATED];
