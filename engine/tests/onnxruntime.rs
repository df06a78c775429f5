//! Executors of kind `onnxruntime` beside those of kind `cpu`: each serves its own models, one
//! whose model hangs goes on, and `symphony check` says where the library is looked for.

mod harness;

use harness::engine::{answer_all, config, start};
use harness::light_models::{NOT_ON_RTEN, light_models};
use harness::onnx::{self, loop_model};
use harness::onnx_library::onnx_library;
use harness::process::PATIENCE;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;
use symphony::runtime::frontend::{Ask, Due, Frontend, Outcome};
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../gpu/tests/data");

/// A CONFIG with an executor of each of these kinds, and these models: name, file, executor.
fn serving(kinds: &[&str], models: &[(&str, &Path, &str)]) -> String {
    let model = |(name, file, executor): &(&str, &Path, &str)| {
        format!(
            "[[models]]\nname = \"{name}\"\nfile = \"{}\"\nexecutor = \"{executor}\"\nslo_ms = 1000\n\
             max_batch = 8\nprofile = {{ alpha_ms = 0.1, beta_ms = 1 }}\n",
            file.display()
        )
    };
    format!(
        "[onnxruntime]\nlibrary = \"{}\"\n[faults]\ngrace_ms = 20\nhung_after_s = 0.5\n\
         {}{}",
        onnx_library().display(),
        kinds.iter().map(|kind| format!("[[executors]]\nkind = \"{kind}\"\n")).collect::<String>(),
        models.iter().map(model).collect::<String>()
    )
}

/// Sends a request with these bytes in front of its inputs; returns its outcome and its output.
fn ask(frontend: &mut Frontend, model: ModelId, within: Nanos, start: &[u8]) -> (Outcome, Vec<u8>) {
    let ask = Ask { due: Due::Within(within), ..Ask::one(model) };
    let fill = |_, input: &mut [u8]| {
        input.fill(0);
        input[..start.len()].copy_from_slice(start);
    };
    frontend.submit(&ask, fill).unwrap();
    let mut answered = None;
    answer_all(frontend, |_, answer| {
        let output = answer.to_vec();
        answered = Some((answer.outcome, output));
    });
    answered.expect("one was in flight")
}

#[test]
fn each_kind_serves_its_own_models_and_their_answers_agree() {
    let folder = tempfile::tempdir().unwrap();
    let (linear, lrn) =
        (Path::new(DATA).join("linear.onnx"), Path::new(DATA).join("unsupported_operator.onnx"));
    let models: [(&str, &Path, &str); 3] =
        [("ours", &linear, "cpu"), ("theirs", &linear, "onnxruntime"), ("lrn", &lrn, "onnxruntime")];
    let (engine, mut frontend) = start(config(folder.path(), &serving(&["onnxruntime", "cpu"], &models)));
    let platforms: Vec<_> = engine.models().iter().map(|model| model.platform.clone()).collect();
    assert_eq!(platforms, ["onnx_rten", "onnxruntime_onnx", "onnxruntime_onnx"]);
    let input: Vec<u8> = [1f32, -2.0, 0.5, 8.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let [ours, theirs, lrn] =
        [0, 1, 2].map(|model| ask(&mut frontend, ModelId(model), Nanos::from_secs(60), &input));
    assert_eq!((ours.0, theirs.0, lrn.0), (Outcome::Good, Outcome::Good, Outcome::Good));
    assert_eq!(ours.1, theirs.1);
    let snapshot = engine.counters().snapshot();
    let backends: Vec<&str> = snapshot.backends.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(backends, ["cpu-0", "onnxruntime-1"]);
    engine.stop();
}

/// Sends a request of these rows, of which each has its own bytes; returns the outputs by row.
fn ask_rows(frontend: &mut Frontend, model: ModelId, rows: &[Vec<u8>]) -> Vec<Vec<f32>> {
    let ask = Ask { due: Due::Never, rows: rows.len(), ..Ask::one(model) };
    frontend.submit(&ask, |row, input| input.copy_from_slice(&rows[row])).unwrap();
    let mut outputs = Vec::new();
    answer_all(frontend, |_, answer| {
        assert_eq!(answer.outcome, Outcome::Good);
        let floats = |row: &[u8]| row.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
        outputs = (0..rows.len()).map(|row| floats(answer.row(row))).collect();
    });
    outputs
}

#[test]
fn the_light_networks_are_served_one_row_and_three_at_a_time() {
    serve_light_networks("onnxruntime", &[]);
    serve_light_networks("cpu", &NOT_ON_RTEN);
}

/// Serves the light networks but these on an executor of this kind; three rows of one request must
/// have the outputs that each has alone.
fn serve_light_networks(kind: &str, without: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let files = light_models();
    let models: Vec<(&str, &Path, &str)> = files
        .iter()
        .map(|file| (file.file_stem().unwrap().to_str().unwrap(), file.as_path(), kind))
        .filter(|(name, ..)| !without.contains(name))
        .collect();
    // A batch of three takes about a second here, and none hangs.
    let text = serving(&[kind], &models).replace("hung_after_s = 0.5", "hung_after_s = 600");
    let (engine, mut frontend) = start(config(folder.path(), &text));
    for (at, model) in engine.models().iter().enumerate() {
        assert_eq!(model.max_batch, 8, "{kind}: {}", model.name);
        let bytes = model.signature.input_bytes();
        let row = |most: f32| -> Vec<u8> {
            (0..bytes / 4).flat_map(|at| (most * (at % 97) as f32 / 97.0).to_le_bytes()).collect()
        };
        let rows = [row(1.0), row(0.6), row(0.2)];
        let id = ModelId(at as u32);
        let together = ask_rows(&mut frontend, id, &rows);
        for (row, together) in rows.iter().zip(&together) {
            let alone = ask_rows(&mut frontend, id, std::slice::from_ref(row));
            let largest = alone[0].iter().fold(0f32, |most, x| most.max(x.abs()));
            let differs = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-4 * largest;
            assert!(!alone[0].iter().zip(together).any(differs), "{kind}: {}", model.name);
        }
    }
    engine.stop();
}

#[test]
fn a_model_that_may_mix_rows_is_served_one_row_at_a_time_whatever_its_profile_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mixes.onnx");
    let along_batch = [onnx::number_attribute("axis", 0)];
    let nodes = [
        onnx::node("Softmax", &["x"], &["ones"], &along_batch),
        onnx::node("Mul", &["x", "ones"], &["y"], &[]),
    ];
    let ends = [onnx::tensor("x", onnx::FLOAT, &[1, 4]), onnx::tensor("y", onnx::FLOAT, &[1, 4])];
    std::fs::write(&file, onnx::file(&onnx::graph(&nodes, &[], &ends[..1], &ends[1..]))).unwrap();
    let models: [(&str, &Path, &str); 2] = [("ours", &file, "cpu"), ("theirs", &file, "onnxruntime")];
    let (engine, mut frontend) = start(config(folder.path(), &serving(&["onnxruntime", "cpu"], &models)));
    for (at, model) in engine.models().iter().enumerate() {
        assert_eq!(model.max_batch, 1, "{}", model.name);
        let row = |number: f32| -> Vec<u8> {
            let mut row = vec![0; model.signature.input_bytes()];
            row[..16].copy_from_slice(&[number; 4].map(f32::to_le_bytes).concat());
            row
        };
        let outputs = ask_rows(&mut frontend, ModelId(at as u32), &[row(1.0), row(2.0), row(3.0)]);
        let firsts: Vec<f32> = outputs.iter().map(|output| output[0]).collect();
        assert_eq!(firsts, [1.0, 2.0, 3.0], "{}: alone, each is multiplied by 1", model.name);
    }
    engine.stop();
}

#[test]
fn a_dynamic_dimension_is_served_at_the_size_of_its_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let file = Path::new(DATA).join("dynamic_width.onnx");
    let models: [(&str, &Path, &str); 2] = [("ours", &file, "cpu"), ("theirs", &file, "onnxruntime")];
    let sized = "max_batch = 8\nsizes = [{ dimension = \"width\", size = 4 }]\n";
    let text = serving(&["onnxruntime", "cpu"], &models).replace("max_batch = 8\n", sized);
    let (engine, mut frontend) = start(config(folder.path(), &text));
    for (at, model) in engine.models().iter().enumerate() {
        assert_eq!(model.signature.inputs[0].shape, [3, 4], "{}", model.name);
        assert_eq!(model.signature.outputs[0].shape, [3, 4], "{}", model.name);
        let row = |sign: f32| (1..=12).flat_map(|x| (sign * x as f32).to_le_bytes()).collect::<Vec<u8>>();
        let outputs = ask_rows(&mut frontend, ModelId(at as u32), &[row(1.0), row(-1.0)]);
        let expected: Vec<f32> = (1..=12).map(|x| x as f32).collect();
        assert_eq!(outputs, [expected, vec![0.0; 12]], "{}: negative numbers become 0", model.name);
    }
    engine.stop();
    let unsized_text = serving(&["cpu"], &models[..1]);
    let output = check(&unsized_text, Path::new(""));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("sizes = [{ dimension = \"width\", size = 128 }]"), "{said}");
}

#[test]
fn a_model_that_hangs_is_given_up_and_its_run_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let loops = folder.path().join("loops.onnx");
    std::fs::write(&loops, loop_model()).unwrap();
    let linear = Path::new(DATA).join("linear.onnx");
    let models: [(&str, &Path, &str); 2] =
        [("loops", &loops, "onnxruntime"), ("linear", &linear, "onnxruntime")];
    let (engine, mut frontend) = start(config(folder.path(), &serving(&["onnxruntime"], &models)));
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        // The thread that computes has its name too; another test's executor is onnxruntime-1.
        names.filter(|name| name.starts_with("onnxruntime-0")).count()
    };
    let before = threads();
    assert!(before > 0, "threads have the names of their roles");
    let hung = || engine.counters().executions().of_model(ModelId(0)).hung_batches;
    let began = Instant::now();
    while hung() == 0 {
        assert!(began.elapsed() < PATIENCE, "no batch hung");
        ask(&mut frontend, ModelId(0), Nanos::from_millis(200), &i64::MAX.to_le_bytes());
    }
    for (model, start) in [(1, &[][..]), (0, &3i64.to_le_bytes()[..])] {
        let began = Instant::now();
        while ask(&mut frontend, ModelId(model), Nanos::from_secs(60), start).0 != Outcome::Good {
            assert!(began.elapsed() < PATIENCE, "model {model} is not served any more");
        }
    }
    // The thread that was given up was told to end its run.
    let began = Instant::now();
    while threads() > before {
        assert!(began.elapsed() < PATIENCE, "the run that hung goes on");
        std::thread::yield_now();
    }
    engine.stop();
}

/// Writes the ONNX file `NAME.onnx` of these nodes and constants, whose input `x` has this shape.
fn write_file(folder: &Path, name: &str, nodes: &[Vec<u8>], constants: &[Vec<u8>], shape: &[u64]) -> PathBuf {
    let ends = [onnx::tensor("x", onnx::FLOAT, shape), onnx::tensor("y", onnx::FLOAT, &[1, 4])];
    let path = folder.join(name).with_extension("onnx");
    std::fs::write(&path, onnx::file(&onnx::graph(nodes, constants, &ends[..1], &ends[1..]))).unwrap();
    path
}

/// Files that are not to be served, and a part of what is said of each.
fn bad_files(folder: &Path) -> Vec<(PathBuf, &'static str)> {
    let identity = [onnx::node("Identity", &["x"], &["y"], &[])];
    let cycle = [onnx::node("Add", &["x", "b"], &["y"], &[]), onnx::node("Relu", &["y"], &["b"], &[])];
    let zeros = [
        onnx::node("ConstantOfShape", &["shape"], &["zeros"], &[]),
        onnx::node("Add", &["x", "zeros"], &["y"], &[]),
    ];
    let adds = [onnx::node("Add", &["x", "w"], &["y"], &[])];
    let write = |name, nodes: &[Vec<u8>], constants: &[Vec<u8>], shape: &[u64]| {
        write_file(folder, name, nodes, constants, shape)
    };
    let weights_in = |name, location: &str| {
        write(name, &adds, &[onnx::external_constant("w", &[1, 4], location)], &[1, 4])
    };
    let truncated = write("truncated", &identity, &[], &[1, 4]);
    let sound = std::fs::read(&truncated).unwrap();
    std::fs::write(&truncated, &sound[..sound.len() / 2]).unwrap();
    let many = onnx::whole_numbers("shape", &[1 << 31]);
    vec![
        (truncated, ""),
        (write("cycle", &cycle, &[], &[1, 4]), ""),
        (write("many_elements", &zeros, &[many], &[1, 4]), "a constant has the shape [2147483648]"),
        (write("wide", &identity, &[], &[1, 1 << 31, 1 << 31]), ""),
        (write("negative", &identity, &[], &[1, u64::MAX]), ""),
        (weights_in("missing", "nowhere.data"), "nowhere.data: No such file"),
        (weights_in("above", "../w.data"), "is outside of the model's folder"),
        (weights_in("absolute", "/w.data"), "is outside of the model's folder"),
    ]
}

#[test]
fn check_refuses_a_bad_file_on_either_executor_and_names_it() {
    let folder = tempfile::tempdir().unwrap();
    for (path, expected) in bad_files(folder.path()) {
        for kind in ["cpu", "onnxruntime"] {
            let output = check(&serving(&[kind], &[("m", &path, kind)]), &onnx_library());
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{kind}: {}: {said}", path.display());
            for part in [path.to_str().unwrap(), expected] {
                assert!(said.contains(part), "{kind}: {said}\nshould contain\n{part}");
            }
        }
    }
}

/// Runs `symphony check` on this CONFIG, where the environment names this library.
fn check(text: &str, library: &Path) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("symphony.toml");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    command.env("ORT_DYLIB_PATH", library).arg("check").arg(&file).output().unwrap()
}

fn on_onnxruntime(head: &str) -> String {
    let file = Path::new(DATA).join("unsupported_operator.onnx");
    format!(
        "{head}[[executors]]\nkind = \"onnxruntime\"\n[[models]]\nname = \"lrn\"\nfile = \"{}\"\nslo_ms = 1000\n",
        file.display()
    )
}

#[test]
fn check_says_where_the_library_is_and_a_model_without_a_kind_runs_on_the_only_one() {
    let library = onnx_library();
    for head in [String::new(), format!("[onnxruntime]\nlibrary = \"{}\"\n", library.display())] {
        let output = check(&on_onnxruntime(&head), &library);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains(&format!("ONNX Runtime: {}", library.display())), "{said}");
    }
}

#[test]
fn check_says_that_the_library_has_no_cuda_provider() {
    let library = onnx_library();
    let output = check(&on_onnxruntime("[onnxruntime]\ngpu = 0\n"), &library);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("ONNX Runtime's CUDA provider can't be used on GPU 0"), "{said}");
    assert!(said.contains("onnxruntime-gpu"), "{said}");
}

#[test]
fn check_says_where_it_looked_if_there_is_no_library() {
    let text = on_onnxruntime("");
    let nowhere = Path::new("/nowhere/libonnxruntime.so");
    let broken = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let named = on_onnxruntime("[onnxruntime]\nlibrary = \"missing.so\"\nthreads = 2\n");
    for (text, library, expected) in [
        (&text, nowhere, "looked in ORT_DYLIB_PATH=/nowhere/libonnxruntime.so: can't be opened"),
        (&text, broken.as_path(), "can't be opened"),
        (&named, nowhere, "missing.so: can't be opened"),
    ] {
        let output = check(text, library);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        for part in [expected, "onnxruntime: ONNX Runtime's library was not found; install it"] {
            assert!(said.contains(part), "{said}\nshould contain\n{part}");
        }
    }
}

#[test]
fn the_virtual_environments_package_comes_before_those_of_programs_in_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("symphony.toml");
    std::fs::write(&file, on_onnxruntime("")).unwrap();
    // The names are in the other order.
    let prefixes = ["z", "a"].map(|name| folder.path().join(name));
    for prefix in &prefixes {
        let package = prefix.join("lib/python3.11/site-packages/onnxruntime/capi");
        std::fs::create_dir_all(&package).unwrap();
        std::os::unix::fs::symlink(onnx_library(), package.join("libonnxruntime.so.1")).unwrap();
        std::fs::create_dir_all(prefix.join("bin")).unwrap();
        std::fs::write(prefix.join("bin/python3"), "").unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    command.env_remove("ORT_DYLIB_PATH").env_remove("CONDA_PREFIX").env("VIRTUAL_ENV", &prefixes[0]);
    let output = command.env("PATH", prefixes[1].join("bin")).arg("check").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(&format!("ONNX Runtime: {}/lib/python3.11/", prefixes[0].display())), "{said}");
}
