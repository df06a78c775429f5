//! Plans: what an ONNX model becomes before a device runs it. A plan is plain data: a blob of
//! weights and, for each batch size, a list of launches on tensors at fixed places of memory. It is
//! compiled without a device; the interpreter runs it on a processor, and is what devices are
//! compared with.
//!
//! ```text
//! ONNX ─ import ─▶ lower ─▶ folded, fused steps ─▶ compile, memory ─▶ Plan ─▶ interpreter, device
//! ```
//!
//! | file | content |
//! | --- | --- |
//! | `program.rs`, `element.rs`, `operation.rs` | a plan as data, and its check |
//! | `shapes.rs` | the type of an operation's result |
//! | `lower/` | ONNX's operators as operations; what is known is folded, the rest fused |
//! | `weights.rs`, `memory.rs`, `compile.rs` | constants, the workspace, the plan |
//! | `file_format.rs`, `json_float.rs` | a plan as a file |
//! | `kernels/`, `interpreter.rs`, `model.rs` | operations on a processor, and plans |

mod compile;
mod element;
mod file_format;
mod interpreter;
mod json_float;
mod kernels;
mod lower;
mod memory;
mod model;
mod operation;
mod program;
mod shapes;
mod weights;

pub use compile::{CompileOptions, CompiledPlan, compile};
pub use element::{AlignedBytes, PlanElement, PlanType};
pub use file_format::PlanFileError;
pub use interpreter::PlanMemory;
pub use kernels::compute;
pub use lower::covers_operator;
pub use model::PlanModel;
pub use operation::{
    BinaryFunction, ImageLayout, Interpolation, Operation, PadFill, PoolFunction, ReduceFunction,
    ResizeCoordinates, UnaryFunction, WindowSpec,
};
pub use program::{
    BatchPlan, KernelImage, Launch, MAX_PLAN_BATCH, Operand, PLAN_ALIGNMENT, Plan, PlanPort, PlanPrecision,
    PlanRegion,
};
pub use shapes::AttentionSizes;
