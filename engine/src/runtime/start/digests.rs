//! The digests by which hosts find out whether they were given the same: SHA-256 of short texts,
//! which docs/protocol.md describes for those who write another host.

use crate::config::{Config, ExecutorGroup, HostConfig};
use crate::runtime::frontend::ModelInfo;
use ring::digest::{SHA256, digest};
use std::fmt::Write as _;
use symphony_gpu::{DataType, TensorSpec};

/// Returns the digest of what all hosts must have the same configuration of, beside the models.
pub(super) fn digest_of_config(config: &Config) -> [u8; 32] {
    sha256(&text_of_config(config))
}

/// Returns the digest of a model that is served: of its name, version and signature, and of what
/// chooses its queues.
pub(super) fn digest_of_model(model: &ModelInfo) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = sha256(&text_of_model(model));
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

fn text_of_config(config: &Config) -> String {
    let mut text = String::new();
    for host in &config.hosts {
        let HostConfig { name, role, .. } = host;
        let _ = writeln!(text, "host {} {} {name}", role.name(), host.frontends());
    }
    for ExecutorGroup { kind, count, host, .. } in &config.executors {
        let _ = writeln!(text, "executors {} {count} {}", kind.name(), host.as_deref().unwrap_or_default());
    }
    let _ = writeln!(text, "in flight {}", config.http.max_in_flight);
    text
}

fn text_of_model(model: &ModelInfo) -> String {
    let ModelInfo { name, version, signature, application, class, .. } = model;
    let mut text = format!("model {name}\nversion {version}\nclass {}\n", class.number());
    if let Some(application) = application {
        let _ = writeln!(text, "application {} {}", application.at, application.name);
    }
    if !signature.has_batch {
        text.push_str("no batches\n");
    }
    if signature.has_variant {
        text.push_str("variants\n");
    }
    for (tensors, what) in [(&signature.inputs, "input"), (&signature.outputs, "output")] {
        tensors.iter().for_each(|spec| write_tensor(&mut text, what, spec));
    }
    text
}

fn write_tensor(text: &mut String, what: &str, TensorSpec { name, datatype, shape }: &TensorSpec) {
    let longest = match datatype {
        DataType::Bytes(longest) => format!("({longest})"),
        _ => String::new(),
    };
    let shape = shape.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let _ = writeln!(text, "{what} {datatype}{longest} [{shape}] {name}");
}

fn sha256(text: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ServedApplication, parse_config};
    use symphony_gpu::Signature;
    use symphony_transport::message::{Class, ModelId};

    /// Fails unless docs/protocol.md shows this text as one.
    fn assert_is_described(text: &str) {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/protocol.md");
        let document = std::fs::read_to_string(path).unwrap();
        assert!(document.contains(&format!("```text\n{text}```\n")), "docs/protocol.md has not:\n{text}");
    }

    const HOSTS: &str = "
        [[hosts]]\nname = \"front\"\nrole = \"frontend\"\naddress = \"127.0.0.1:1\"\napi_threads = 2
        [[hosts]]\nname = \"scheduler\"\nrole = \"scheduler\"\naddress = \"127.0.0.1:2\"
        [[hosts]]\nname = \"gpus\"\nrole = \"backend\"
        [[executors]]\nkind = \"emulated\"\ncount = 8\nhost = \"gpus\"
        [[models]]\nname = \"m\"\nexecutor = \"emulated\"\nslo_ms = 50\nprofile = { alpha_ms = 1, beta_ms = 5 }";

    #[test]
    fn the_text_of_a_configuration_is_that_of_the_document() {
        assert_is_described(&text_of_config(&parse_config(HOSTS).unwrap()));
    }

    #[test]
    fn hosts_with_other_executors_have_another_digest() {
        let digest = |text: &str| digest_of_config(&parse_config(text).unwrap());
        assert_eq!(digest(HOSTS), digest(&HOSTS.replace("127.0.0.1:2", "scheduler:7400")));
        assert_ne!(digest(HOSTS), digest(&HOSTS.replace("count = 8", "count = 2")));
    }

    #[test]
    fn the_text_of_a_model_is_that_of_the_document() {
        let spec = |name: &str, datatype, shape: &[usize]| TensorSpec {
            name: name.to_owned(),
            datatype,
            shape: shape.to_vec(),
        };
        let inputs =
            vec![spec("pixels", DataType::Fp32, &[3, 224, 224]), spec("scale", DataType::Int64, &[])];
        let outputs = vec![spec("label", DataType::Bytes(60), &[5])];
        let model = ModelInfo {
            name: "resnet50".to_owned(),
            version: 2,
            signature: Signature {
                has_batch: false,
                has_variant: true,
                ..Signature::of_rows(inputs, outputs)
            },
            application: Some(ServedApplication { name: "thumbnails".into(), at: 1, scale: 1.0 }),
            class: Class::new(1).unwrap(),
            ..ModelInfo::vacant(ModelId(0), 0)
        };
        assert_is_described(&text_of_model(&model));
        let other = ModelInfo { version: 3, ..model.clone() };
        assert_ne!(digest_of_model(&model), digest_of_model(&other));
    }
}
