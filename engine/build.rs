//! Turns the files of proto/ into the messages of `api::grpc::messages` and its neighbours, and
//! into what server reflection answers. protox reads them, so no protoc is needed.

use protox::prost::Message;
use protox::prost_reflect::prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto};
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;

/// The services that the server answers, by the files that define them.
const FILES: [&str; 4] = [
    "inference.proto",
    "grpc/health/v1/health.proto",
    "grpc/reflection/v1/reflection.proto",
    "grpc/reflection/v1alpha/reflection.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(FILES, ["proto"])?;
    let out = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&out).join("described.rs"), described(&files.file, Path::new(&out))?)?;
    // Tensors stay in the buffer that they came in.
    prost_build::Config::new().bytes(["."]).compile_fds(files)?;
    Ok(())
}

/// Returns the array of the described files, as Rust, and writes their descriptors beside it.
fn described(files: &[FileDescriptorProto], out: &Path) -> Result<String, Box<dyn Error>> {
    let mut array = String::from("[\n");
    for (at, file) in files.iter().enumerate() {
        let descriptor = out.join(format!("described-{at}.bin"));
        std::fs::write(&descriptor, file.encode_to_vec())?;
        let services: Vec<String> =
            file.service.iter().map(|service| format!("{}.{}", file.package(), service.name())).collect();
        writeln!(
            array,
            "DescribedFile {{ name: {:?}, descriptor: include_bytes!({descriptor:?}), services: &{services:?}, symbols: &{:?} }},",
            file.name(),
            symbols(file),
        )?;
    }
    Ok(array + "]\n")
}

/// Returns the full names of what a file defines: services, methods, messages and enums.
fn symbols(file: &FileDescriptorProto) -> Vec<String> {
    let mut all = Vec::new();
    for service in &file.service {
        let name = format!("{}.{}", file.package(), service.name());
        all.extend(service.method.iter().map(|method| format!("{name}.{}", method.name())));
        all.push(name);
    }
    add_types(file.package(), &file.message_type, &file.enum_type, &mut all);
    all
}

fn add_types(
    within: &str,
    messages: &[DescriptorProto],
    enums: &[EnumDescriptorProto],
    all: &mut Vec<String>,
) {
    all.extend(enums.iter().map(|of| format!("{within}.{}", of.name())));
    for message in messages {
        let name = format!("{within}.{}", message.name());
        add_types(&name, &message.nested_type, &message.enum_type, all);
        all.push(name);
    }
}
