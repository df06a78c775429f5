//! The arrows of ARCHITECTURE.md, read from the source: which room may use which, that no files use
//! each other in a circle, and that no type name stands for two things. Tests' own code is left
//! out. Documents name only files that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::Visit;
use syn::{Attribute, Item, ItemMod, UseTree, Visibility};

/// The rooms of `engine/src`, each with those that it may use. An arrow goes down only.
const ROOMS: &[(&str, &[&str])] = &[
    ("cli", &["api", "batch_client", "config", "control", "recorder", "runtime", "telemetry", "top"]),
    ("top", &[]),
    ("batch_client", &["config", "runtime"]),
    ("api", &["config", "control", "runtime", "telemetry"]),
    ("control", &["config", "runtime"]),
    ("telemetry", &["config", "runtime"]),
    ("runtime", &["config", "recorder"]),
    ("recorder", &[]),
    ("config", &[]),
];

/// The crates of the workspace, each with those of ours that it may depend on.
const CRATES: &[(&str, &[&str])] = &[
    ("transport", &[]),
    ("gpu", &["symphony-transport"]),
    ("gpu/fake_driver", &["symphony-gpu", "symphony-transport"]),
    ("engine/scheduler", &["symphony-transport"]),
    ("engine", &["symphony-gpu", "symphony-scheduler", "symphony-transport"]),
    ("tools", &["symphony", "symphony-gpu", "symphony-scheduler", "symphony-transport"]),
    ("perf", &["symphony", "symphony-gpu", "symphony-scheduler", "symphony-transport"]),
    (
        "perf/papers",
        &["symphony", "symphony-gpu", "symphony-perf", "symphony-scheduler", "symphony-transport"],
    ),
];

/// The crates in which no files use each other in a circle. In `perf` and `perf/papers` a benchmark
/// or an experiment and the list that names it do.
const WITHOUT_CIRCLES: &[&str] = &["transport", "gpu", "engine/scheduler", "engine", "tools"];

/// Crates whose types are seen together: within each group a type name stands for one thing.
const VOCABULARIES: &[&[&str]] =
    &[&["engine", "engine/scheduler", "transport", "gpu"], &["tools"], &["perf", "perf/papers"]];

/// The folders of the root whose files documents name.
const FOLDERS: &[&str] =
    &[".ci", ".github", "docs", "engine", "examples", "gpu", "perf", "tools", "transport"];

/// Paths that documents name and that only a run of the fuzzer makes.
const FUZZED: &[&str] = &["engine/fuzz/artifacts", "engine/fuzz/corpus"];

/// The path of a module in its crate; empty for the crate's root.
type ModulePath = Vec<String>;

/// One source file: what it uses, what it hands on under its own name, and the types it defines.
struct SourceFile {
    path: PathBuf,
    uses: Vec<Vec<String>>,
    /// The path that a `pub use` gives each name.
    reexports: BTreeMap<String, Vec<String>>,
    types: Vec<String>,
}

/// The files of a crate by module path, tests left out.
struct SourceTree {
    files: BTreeMap<ModulePath, SourceFile>,
}

impl SourceTree {
    fn read(crate_folder: &str) -> SourceTree {
        let src = root().join(crate_folder).join("src");
        let mut tree = SourceTree { files: BTreeMap::new() };
        let lib = src.join("lib.rs");
        tree.add(&src, lib, Vec::new());
        tree
    }

    fn add(&mut self, folder: &Path, path: PathBuf, module: ModulePath) {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let modules = parsed.items.iter().filter_map(|item| match item {
            Item::Mod(ItemMod { ident, content: None, .. }) => Some(ident.to_string()),
            _ => None,
        });
        let mut children = Vec::new();
        let mut reader = Reader { module: module.clone(), modules: modules.collect(), ..Reader::default() };
        for item in &parsed.items {
            reader.read(item, &mut children);
        }
        let Reader { uses, reexports, types, .. } = reader;
        self.files.insert(module.clone(), SourceFile { path, uses, reexports, types });
        for child in children {
            let (flat, deep) = (folder.join(format!("{child}.rs")), folder.join(&child).join("mod.rs"));
            let path = if flat.is_file() { flat } else { deep };
            if path.is_file() {
                let module = module.iter().cloned().chain([child.clone()]).collect();
                self.add(&folder.join(child), path, module);
            }
        }
    }

    /// The module whose file defines what `path` names, if it is of this crate: re-exports are
    /// followed.
    fn definer(&self, path: &[String]) -> Option<&ModulePath> {
        let mut path = path.to_vec();
        for _ in 0..16 {
            let known = (0..=path.len()).rev().find(|&length| self.files.contains_key(&path[..length]))?;
            let (module, file) = self.files.get_key_value(&path[..known])?;
            match path.get(known).and_then(|name| file.reexports.get(name)) {
                Some(target) => path = target.iter().chain(&path[known + 1..]).cloned().collect(),
                None => return Some(module),
            }
        }
        panic!("re-exports in a circle at {path:?}");
    }

    /// The files that each file uses.
    fn arrows(&self) -> BTreeMap<&ModulePath, BTreeSet<&ModulePath>> {
        let targets = |module, file: &SourceFile| {
            let found = file.uses.iter().filter_map(|path| self.definer(path));
            found.filter(|target| *target != module).collect()
        };
        self.files.iter().map(|(module, file)| (module, targets(module, file))).collect()
    }
}

/// Collects what a file's items use and define.
#[derive(Default)]
struct Reader {
    module: ModulePath,
    /// The modules that the file declares.
    modules: BTreeSet<String>,
    uses: Vec<Vec<String>>,
    reexports: BTreeMap<String, Vec<String>>,
    types: Vec<String>,
}

impl Reader {
    /// Reads an item; adds the modules that it declares as files to `children`.
    fn read(&mut self, item: &Item, children: &mut Vec<String>) {
        match item {
            _ if attributes(item).iter().any(is_for_tests) => {}
            Item::Mod(ItemMod { ident, content: None, .. }) => children.push(ident.to_string()),
            Item::Use(item) => {
                let mut leaves = Vec::new();
                flatten(&item.tree, Vec::new(), &mut leaves);
                for (path, name) in leaves {
                    let Some(path) = self.absolute(&path) else { continue };
                    match item.vis {
                        Visibility::Inherited => self.uses.push(path),
                        _ => drop(self.reexports.insert(name, path)),
                    }
                }
            }
            Item::Struct(item) => self.define(&item.ident, |reader| reader.visit_item_struct(item)),
            Item::Enum(item) => self.define(&item.ident, |reader| reader.visit_item_enum(item)),
            Item::Trait(item) => self.define(&item.ident, |reader| reader.visit_item_trait(item)),
            Item::Type(item) => self.define(&item.ident, |reader| reader.visit_item_type(item)),
            item => self.visit_item(item),
        }
    }

    fn define(&mut self, name: &syn::Ident, visit: impl FnOnce(&mut Reader)) {
        self.types.push(name.to_string());
        visit(self);
    }

    /// The path from the crate's root, of one that begins with `crate`, `self` or `super`.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let mut base = match path.first().map(String::as_str) {
            Some("crate") => return Some(path[1..].to_vec()),
            Some("self" | "super") => self.module.clone(),
            // A module declared here, or another crate: the first is no arrow to anywhere else.
            _ => return Some(self.module.iter().chain(path).cloned().collect()),
        };
        let mut rest = path;
        while let Some((first, others)) = rest.split_first() {
            match first.as_str() {
                "self" => {}
                "super" => drop(base.pop()),
                _ => break,
            }
            rest = others;
        }
        Some(base.into_iter().chain(rest.iter().cloned()).collect())
    }
}

impl Visit<'_> for Reader {
    fn visit_path(&mut self, path: &syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let first = segments[0].as_str();
        if matches!(first, "crate" | "self" | "super") || self.modules.contains(first) {
            self.uses.extend(self.absolute(&segments));
        }
        syn::visit::visit_path(self, path);
    }

    /// Skips `pub(super)` and the like: they name who may use an item, not what it uses.
    fn visit_vis_restricted(&mut self, _: &syn::VisRestricted) {}
}

/// The paths that a `use` names, each with the name that it gives.
fn flatten(tree: &UseTree, mut prefix: Vec<String>, leaves: &mut Vec<(Vec<String>, String)>) {
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, leaves);
        }
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| flatten(tree, prefix.clone(), leaves));
        }
        UseTree::Name(name) if name.ident == "self" => {
            let last = prefix.last().cloned().unwrap_or_default();
            leaves.push((prefix, last));
        }
        UseTree::Name(name) => {
            prefix.push(name.ident.to_string());
            leaves.push((prefix, name.ident.to_string()));
        }
        UseTree::Rename(rename) => {
            prefix.push(rename.ident.to_string());
            leaves.push((prefix, rename.rename.to_string()));
        }
        UseTree::Glob(_) => leaves.push((prefix, "*".to_owned())),
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        _ => &[],
    }
}

/// True for `#[cfg(test)]` and any other condition that names `test`.
fn is_for_tests(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string().contains("test"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The circles of a graph of files: each file that can be reached from itself, with the way.
fn circles(arrows: &BTreeMap<&ModulePath, BTreeSet<&ModulePath>>) -> Vec<String> {
    let mut found = BTreeSet::new();
    for &start in arrows.keys() {
        let mut came_from: BTreeMap<&ModulePath, &ModulePath> = BTreeMap::new();
        let mut frontier = vec![start];
        while let Some(at) = frontier.pop() {
            for &next in &arrows[at] {
                if !came_from.contains_key(next) {
                    came_from.insert(next, at);
                    frontier.push(next);
                }
            }
        }
        if came_from.contains_key(start) {
            let mut way = vec![start];
            while way.len() == 1 || way[way.len() - 1] != start {
                way.push(came_from[way[way.len() - 1]]);
            }
            way.pop();
            let first = (0..way.len()).min_by_key(|&at| way[at]).unwrap_or(0);
            way.rotate_left(first);
            let names: Vec<String> = way.iter().rev().map(|module| module.join("::")).collect();
            found.insert(names.join(" -> "));
        }
    }
    found.into_iter().collect()
}

#[test]
fn rooms_use_only_the_rooms_below_them() {
    let tree = SourceTree::read("engine");
    let mut wrong = Vec::new();
    for (module, targets) in tree.arrows() {
        let Some(room) = module.first() else { continue };
        let known = ROOMS.iter().find(|(name, _)| name == room);
        let (_, below) =
            known.unwrap_or_else(|| panic!("engine/src/{room} is no room: give it a line in ROOMS"));
        for target in targets.iter().filter_map(|target| target.first()) {
            if target != room && !below.contains(&target.as_str()) {
                wrong.push(format!("{} uses {target}", tree.files[module].path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "arrows that go up:\n{}", wrong.join("\n"));
}

#[test]
fn crates_depend_only_on_those_below_them() {
    for (folder, below) in CRATES {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let dependencies =
            manifest.split("\n[").find(|section| section.starts_with("dependencies]")).unwrap();
        let ours = dependencies.lines().filter(|line| line.starts_with("symphony"));
        for line in ours {
            let name = line.split(['.', ' ', '=']).next().unwrap();
            assert!(below.contains(&name), "{folder}/Cargo.toml: {name} is not below it");
        }
    }
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let found: Vec<String> = WITHOUT_CIRCLES
        .iter()
        .flat_map(|folder| {
            let circles = circles(&SourceTree::read(folder).arrows());
            circles.into_iter().map(move |circle| format!("{folder}: {circle}"))
        })
        .collect();
    assert!(found.is_empty(), "circles:\n{}", found.join("\n"));
}

#[test]
fn a_type_name_stands_for_one_thing() {
    for folders in VOCABULARIES {
        let mut definitions: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for folder in *folders {
            for file in SourceTree::read(folder).files.into_values() {
                for name in file.types {
                    definitions.entry(name).or_default().push(file.path.display().to_string());
                }
            }
        }
        definitions.retain(|_, files| files.len() > 1);
        assert!(definitions.is_empty(), "type names with several meanings:\n{definitions:#?}");
    }
}

#[test]
fn every_file_says_what_lives_in_it() {
    for (folder, _) in CRATES {
        for file in SourceTree::read(folder).files.values() {
            let text = fs::read_to_string(&file.path).unwrap();
            assert!(text.starts_with("//!"), "{} has no head: begin it with `//!`", file.path.display());
        }
    }
}

#[test]
fn the_scheduler_can_name_no_clock_file_socket_or_thread() {
    let lib = fs::read_to_string(root().join("engine/scheduler/src/lib.rs")).unwrap();
    assert!(lib.contains("#![cfg_attr(not(test), no_std)]"), "the scheduler must stay no_std");
    assert!(!lib.contains("extern crate std"), "std must not be nameable in the scheduler");
}

/// The repository's documents: those of its root and all below `docs`.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root(), root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            } else if path.is_dir() && folder != root() {
                folders.push(path);
            }
        }
    }
    found
}

/// The paths from the repository's root that a line names. `NAME` in capitals stands for any name,
/// so a path with such a part is none.
fn named_paths(line: &str) -> impl Iterator<Item = &str> {
    let is_of_a_path = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let is_placeholder = |part: &str| {
        let stem = part.split('.').next().unwrap_or(part);
        !part.ends_with(".md") && stem.len() > 1 && stem.chars().all(|c| c.is_ascii_uppercase())
    };
    line.split(move |c| !is_of_a_path(c))
        .map(|path| path.trim_end_matches(['.', '/']))
        .filter(|path| path.split_once('/').is_some_and(|(first, _)| FOLDERS.contains(&first)))
        // The beginning of a pattern such as `perf/results/api-*.json`.
        .filter(|path| !path.ends_with('-'))
        .filter(move |path| !path.split('/').any(is_placeholder))
}

#[test]
fn every_path_that_a_document_names_exists() {
    let mut missing = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let mut in_block = false;
        for (at, line) in (1..).zip(text.lines()) {
            if line.trim_start().starts_with("```") {
                in_block = !in_block;
            } else if !in_block {
                let absent =
                    named_paths(line).filter(|path| !FUZZED.contains(path) && !root().join(path).exists());
                missing.extend(absent.map(|path| format!("{}:{at}: {path}", document.display())));
            }
        }
        assert!(!in_block, "{} ends within a block of code", document.display());
    }
    assert!(missing.is_empty(), "documents name what does not exist:\n{}", missing.join("\n"));
}
