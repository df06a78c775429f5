//! The file of bearer tokens that `[api]` names; docs/security.md is for users.

use super::diagnostics::{Diagnostic, Diagnostics, Location};
use super::models::read_application_name;
use super::toml_reader::{Bounds, TomlTable, TomlValue, read};
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The most tokens of a file.
const MAX_TOKENS: usize = 65_536;

/// The length of a token in characters: a shorter one could be guessed, a longer one does not fit
/// in the head of a request.
const TOKEN_LENGTH: std::ops::RangeInclusive<usize> = 16..=4_096;

/// The range of `rate_rps`.
const RPS: Bounds = Bounds::above(0.0, 1e9);

/// The lower bound of the default burst, which is otherwise the calls of one second.
const LEAST_BURST: f64 = 1.0;

/// The SHA-256 of a token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; SHA256_OUTPUT_LEN]);

impl Fingerprint {
    /// Computes the fingerprint of a token.
    pub fn of(token: &[u8]) -> Fingerprint {
        let mut hash = [0; SHA256_OUTPUT_LEN];
        hash.copy_from_slice(digest(&SHA256, token).as_ref());
        Fingerprint(hash)
    }

    /// The first 8 bytes, the key of a table of tokens. It need not be secret: finding a token
    /// whose hash begins with given bytes is infeasible.
    pub fn key(&self) -> u64 {
        u64::from_le_bytes(*self.0.first_chunk().expect("it has 32 bytes"))
    }
}

impl Default for Fingerprint {
    /// Returns a fingerprint that no known token has.
    fn default() -> Fingerprint {
        Fingerprint([0; SHA256_OUTPUT_LEN])
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({:016x}…)", self.key().swap_bytes())
    }
}

/// The limit on how often a token may be used.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TokenRate {
    /// Calls per second in the long run; above 0.
    pub rps: f64,
    /// Calls allowed at once after a pause; at least 1.
    pub burst: u32,
}

/// The calls that a token is for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum TokenRole {
    /// Metrics and health alone, on every listener.
    Metrics,
    /// The use of models.
    #[default]
    User,
    /// The use of models, and admin calls.
    Admin,
}

impl TokenRole {
    const ALL: [(&str, TokenRole); 3] =
        [("metrics", TokenRole::Metrics), ("user", TokenRole::User), ("admin", TokenRole::Admin)];

    /// Returns its name in the file of tokens.
    pub fn name(self) -> &'static str {
        TokenRole::ALL.iter().find(|(_, role)| *role == self).map_or("", |(name, _)| name)
    }
}

/// A token and what it permits.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct TokenGrant {
    /// The token's name in errors and logs.
    pub name: String,
    /// The token's hash.
    pub fingerprint: Fingerprint,
    /// The models that it may call: names, in which `*` stands for any characters.
    pub models: Vec<String>,
    /// The limit on calls; `None` is no limit.
    pub rate: Option<TokenRate>,
    /// The calls that it is for.
    pub role: TokenRole,
    /// The highest class of its requests, from 0 (the most urgent) to 3; those that would be of a
    /// higher one are served in this.
    pub priority: u8,
    /// The application of its requests that name none, of models that have such.
    pub application: Option<Arc<str>>,
}

impl TokenGrant {
    /// True if the token permits calls of this model.
    pub fn is_for(&self, model: &str) -> bool {
        self.models.iter().any(|pattern| matches(pattern, model))
    }
}

/// True if `text` matches `pattern`, in which `*` stands for any characters.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        // The earliest match leaves the most for what follows.
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(last)
}

/// Reads the tokens in the TOML file at `path`.
///
/// Errors: every diagnostic of the file.
pub fn read_tokens(path: &Path) -> Result<Vec<TokenGrant>, Diagnostics> {
    let tokens = read(path, |root| {
        let tokens = root.tables("tokens", 1, |table| Some((table.location("name"), read_token(table)?)));
        if tokens.len() > MAX_TOKENS {
            let wrong = format!("{} tokens are too many", tokens.len());
            root.report("tokens", wrong, format!("give at most {MAX_TOKENS}"));
        }
        report_duplicates(root, &tokens);
        Some(tokens)
    })?;
    Ok(tokens.into_iter().map(|(_, token)| token).collect())
}

fn read_token(table: &TomlTable<'_>) -> Option<TokenGrant> {
    let name = table.required("name", "what the token is called in errors and logs");
    let name = name.and_then(|value| value.text("a name").map(str::to_owned));
    let fingerprint = read_fingerprint(table);
    let models =
        table.optional("models").map_or_else(|| Some(vec!["*".to_owned()]), |value| read_models(&value));
    let rps = table.optional("rate_rps").map_or(Some(None), |value| value.number(RPS).map(Some));
    let burst =
        table.optional("burst").map_or(Some(None), |value| value.integer(1..=1_000_000_000).map(Some));
    let role = read_role(table);
    let priority = table.optional("priority").map_or(Some(0), |value| value.integer(0..=3));
    let application = table.optional("application").map(|value| read_application_name(&value));
    let (rps, burst) = (rps?, burst?);
    if rps.is_none() && burst.is_some() {
        table.report("burst", "is given without `rate_rps`", "add the calls a second, or leave it out");
        return None;
    }
    let rate = rps.map(|rps| {
        let default = rps.max(LEAST_BURST).min(f64::from(u32::MAX)) as u32;
        TokenRate { rps, burst: burst.map_or(default, |burst| burst as u32) }
    });
    Some(TokenGrant {
        name: name?,
        fingerprint: fingerprint?,
        models: models?,
        rate,
        role: role?,
        priority: priority? as u8,
        application: application.map_or(Some(None), |name| name.map(Some))?,
    })
}

/// Reads `role`, or `admin = true`, which is another form of `role = "admin"`.
fn read_role(table: &TomlTable<'_>) -> Option<TokenRole> {
    let admin = table.optional("admin");
    let Some(role) = table.optional("role") else {
        let admin = admin.map_or(Some(false), |value| value.truth())?;
        return Some(if admin { TokenRole::Admin } else { TokenRole::User });
    };
    if let Some(admin) = admin {
        admin.report("is given beside `role`", "give `role` alone");
        return None;
    }
    let name = role.word(&TokenRole::ALL.map(|(name, _)| name))?;
    TokenRole::ALL.iter().find(|(known, _)| *known == name).map(|(_, role)| *role)
}

fn read_fingerprint(table: &TomlTable<'_>) -> Option<Fingerprint> {
    let (token, hash) = (table.optional("token"), table.optional("sha256"));
    match (token, hash) {
        (Some(token), None) => {
            let (least, most) = (TOKEN_LENGTH.start(), TOKEN_LENGTH.end());
            let right = format!(
                "{least} to {most} visible characters of ASCII; `openssl rand -hex 32` makes a token"
            );
            let text = token.text(&right)?;
            if !TOKEN_LENGTH.contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
                // It is not repeated: it is a secret.
                token.report("is no token that could be used", format!("it must be {right}"));
                return None;
            }
            Some(Fingerprint::of(text.as_bytes()))
        }
        (None, Some(hash)) => {
            let right = "64 digits of hexadecimal, as `printf %s TOKEN | sha256sum` prints them";
            let bytes = hexadecimal(hash.text(right)?);
            if bytes.is_none() {
                hash.refuse_value(right);
            }
            bytes.map(Fingerprint)
        }
        (Some(_), Some(hash)) => {
            hash.report("is given beside `token`", "give one of them");
            None
        }
        (None, None) => {
            table.report("token", "is missing", "add it, or its hash as `sha256`");
            None
        }
    }
}

fn hexadecimal(text: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    (digits.len() == 64).then(|| bytes.try_into().ok())?
}

fn read_models(value: &TomlValue<'_>) -> Option<Vec<String>> {
    let items = value.items("it must be a list of models' names, like [\"digits\", \"resnet*\"]")?;
    let names = items.iter().map(|item| item.text("a model's name, in which * stands for any characters"));
    names.map(|name| name.map(str::to_owned)).collect()
}

/// Reports names and tokens that occur twice.
fn report_duplicates(root: &TomlTable<'_>, tokens: &[(Location, TokenGrant)]) {
    let (mut names, mut fingerprints) = (HashMap::new(), HashMap::new());
    for (location, token) in tokens {
        let duplicate =
            |first: Option<usize>, wrong: &str| -> Option<Diagnostic> {
                Some(location.diagnostic(
                    format!("{wrong} of line {}", first?),
                    "give each a token and a name of its own",
                ))
            };
        let diagnostics = [
            duplicate(names.insert(&token.name, location.line), "has the name of the token"),
            duplicate(fingerprints.insert(token.fingerprint, location.line), "is the token"),
        ];
        diagnostics.into_iter().flatten().for_each(|diagnostic| root.add(diagnostic));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters_and_nothing_else_does() {
        for (pattern, yes, no) in [
            ("digits", vec!["digits"], vec!["digits2", "digit", ""]),
            ("res*", vec!["res", "resnet50"], vec!["re", "aresnet"]),
            ("*net*", vec!["net", "resnet50"], vec!["ne"]),
            ("a*b*c", vec!["abc", "a--b--c", "abbc"], vec!["acb", "ab", "abcd"]),
            ("a*a", vec!["aa", "aba"], vec!["a"]),
            ("*", vec!["", "x"], vec![]),
        ] {
            yes.iter().for_each(|text| assert!(matches(pattern, text), "{pattern} {text}"));
            no.iter().for_each(|text| assert!(!matches(pattern, text), "{pattern} {text}"));
        }
    }
}
