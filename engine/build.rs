//! Turns proto/inference.proto into the messages of `api::grpc::messages`. protox reads it, so
//! no protoc is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/inference.proto");
    let files = protox::compile(["inference.proto"], ["proto"])?;
    // Tensors stay in the buffer that they came in.
    prost_build::Config::new().bytes(["."]).compile_fds(files)?;
    Ok(())
}
