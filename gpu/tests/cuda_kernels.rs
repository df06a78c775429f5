//! The kernels for GPUs compile, for each generation of cards, by NVIDIA's compiler from PyPI.

#[path = "../../engine/tests/harness/light_models.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod light;

use light::made_folder;
use std::process::Command;
use symphony_gpu::cuda::launch::KERNELS;
use symphony_gpu::cuda::{compile_kernels, kernel_source};

/// The environment variable that makes the test below compile, and not start itself.
const INSIDE: &str = "SYMPHONY_COMPILES_KERNELS";

/// The capabilities of A100, L40, H100 and B200.
const CAPABILITIES: [[u32; 2]; 4] = [[8, 0], [8, 9], [9, 0], [10, 0]];

#[test]
fn the_kernels_compile_with_the_arguments_that_the_host_lays_out() {
    if std::env::var_os(INSIDE).is_some() {
        return compile_for_all();
    }
    // The system's loader reads the variable when a process starts.
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_kernels_compile_with_the_arguments_that_the_host_lays_out", "--nocapture"])
        .env("LD_LIBRARY_PATH", made_folder("nvrtc"))
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

fn compile_for_all() {
    let source = kernel_source();
    for capability in CAPABILITIES {
        let began = std::time::Instant::now();
        let compiled = compile_kernels(&source, capability).unwrap_or_else(|error| panic!("{error}"));
        println!("{capability:?} took {:?}", began.elapsed());
        let text = String::from_utf8_lossy(&compiled);
        for kernel in KERNELS {
            assert!(text.contains(&format!(".entry {kernel}(")), "{kernel} for {capability:?}");
        }
    }
    let refused = compile_kernels("static_assert(sizeof(int) == 8, \"wrong\");", [9, 0]).unwrap_err();
    assert!(refused.to_string().contains("wrong"), "{refused}");
}
