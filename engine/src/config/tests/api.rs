//! `[api]` and the file of tokens.

use super::{folder, rendered};
use crate::config::{AccessConfig, Fingerprint, TokenRate, TokenRole, read_config, read_tokens};
use std::net::SocketAddr;

#[test]
fn tokens_are_read_with_what_they_are_for() {
    let hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let text = format!(
        "[[tokens]]\nname = \"a\"\ntoken = \"0123456789abcdef\"\nmodels = [\"x*\"]\nrate_rps = 2.5\n\
         [[tokens]]\nname = \"b\"\nsha256 = \"{hash}\"\nrate_rps = 0.5\nburst = 7\nadmin = true\n"
    );
    let folder = folder(&[("tokens.toml", text.as_bytes())]);
    let tokens = read_tokens(&folder.path().join("tokens.toml")).unwrap();
    let [a, b] = &tokens[..] else { panic!("two tokens") };
    assert_eq!((a.fingerprint, a.role), (Fingerprint::of(b"0123456789abcdef"), TokenRole::User));
    assert!(a.is_for("xyz") && !a.is_for("y"));
    assert_eq!(a.rate, Some(TokenRate { rps: 2.5, burst: 2 }));
    assert_eq!((b.fingerprint, b.role), (Fingerprint::of(b"test"), TokenRole::Admin));
    assert!(b.is_for("anything"));
    assert_eq!(b.rate, Some(TokenRate { rps: 0.5, burst: 7 }));
}

#[test]
fn a_token_has_a_role_and_may_have_a_highest_priority() {
    let read = |fields: &str| {
        let text = format!("[[tokens]]\nname = \"a\"\ntoken = \"0123456789abcdef\"\n{fields}");
        let folder = folder(&[("tokens.toml", text.as_bytes())]);
        let tokens = read_tokens(&folder.path().join("tokens.toml"));
        tokens.map(|tokens| (tokens[0].role, tokens[0].priority)).map_err(|error| error.to_string())
    };
    assert_eq!(read("role = \"metrics\"\n"), Ok((TokenRole::Metrics, 0)));
    assert_eq!(read("role = \"admin\"\npriority = 3\n"), Ok((TokenRole::Admin, 3)));
    assert_eq!(read("admin = false\npriority = 1\n"), Ok((TokenRole::User, 1)));
    for (fields, error) in [
        ("role = \"metric\"\n", "did you mean \"metrics\"?"),
        ("role = \"user\"\nadmin = true\n", "tokens[0].admin: is given beside `role`; give `role` alone"),
        ("priority = 4\n", "tokens[0].priority: is 4"),
    ] {
        let found = read(fields).unwrap_err();
        assert!(found.contains(error), "{found}");
    }
}

#[test]
fn every_error_in_a_file_of_tokens_is_reported_without_a_token() {
    let secret = "0123456789abcdef";
    let text = format!(
        "[[tokens]]\nname = \"a\"\ntoken = \"too short\"\n\
         [[tokens]]\nname = \"b\"\ntoken = \"{secret}\"\nsha256 = \"00\"\n\
         [[tokens]]\nname = \"c\"\nsha256 = \"00\"\nmodels = \"m\"\n\
         [[tokens]]\nname = \"d\"\ntoken = \"{secret}\"\nburst = 3\n\
         [[tokens]]\nname = \"e\"\n\
         [[tokens]]\nname = \"f\"\ntoken = \"{secret}\"\nrate_rps = 0\nadmin = 1\n\
         [[tokens]]\nname = \"g\"\ntoken = \"{secret}\"\n\
         [[tokens]]\nname = \"g\"\ntoken = \"{secret}\"\n"
    );
    let folder = folder(&[("tokens.toml", text.as_bytes())]);
    let diagnostics = read_tokens(&folder.path().join("tokens.toml")).unwrap_err();
    let rendered = rendered(&diagnostics, folder.path());
    for (line, field, text) in [
        (3, "tokens[0].token", "visible characters of ASCII"),
        (7, "tokens[1].sha256", "give one of them"),
        (11, "tokens[2].models", "must be a list"),
        (10, "tokens[2].sha256", "64 digits"),
        (15, "tokens[3].burst", "rate_rps"),
        (16, "tokens[4].token", "is missing"),
        (21, "tokens[5].rate_rps", "above 0"),
        (22, "tokens[5].admin", "true or false"),
        (27, "tokens[7].name", "has the name of the token of line 24"),
        (27, "tokens[7].name", "is the token of line 24"),
    ] {
        let start = format!("tokens.toml:{line}: {field}: ");
        assert!(
            rendered.iter().any(|line| line.starts_with(&start) && line.contains(text)),
            "{start}{text} in {rendered:#?}"
        );
    }
    assert!(!diagnostics.to_string().contains(secret) && !diagnostics.to_string().contains("too short"));
}

#[test]
fn the_section_api_says_where_and_with_what() {
    let models = "[[executors]]\nkind = \"emulated\"\n[[models]]\nname = \"m\"\nexecutor = \"emulated\"\nslo_ms = 25\n\
                  profile = { alpha_ms = 1, beta_ms = 1 }\n";
    let api = "[api]\nadmin = \"[::1]:9\"\ntls_cert = \"c.pem\"\ntls_key = \"k.pem\"\ntokens = \"t.toml\"\n\
               allowed_hosts = [\"models.example\", \"[::2]\"]\ninsecure_admin = true\n";
    let good = folder(&[("symphony.toml", format!("{api}{models}").as_bytes())]);
    let access = read_config(good.path()).unwrap().access;
    let beside = |name: &str| good.path().join(name);
    assert_eq!(access.admin, Some("[::1]:9".parse().unwrap()));
    assert_eq!(access.tls, Some((beside("c.pem"), beside("k.pem"))));
    assert_eq!(access.tokens, Some(beside("t.toml")));
    assert_eq!(access.allowed_hosts, ["models.example", "[::2]"]);
    assert!(access.insecure_admin);
    let bad = "[api]\nadmin = \"here\"\ntls_key = \"k.pem\"\nallowed_hosts = [\"http://a:1\"]\n";
    let bad = folder(&[("symphony.toml", format!("{bad}{models}").as_bytes())]);
    let rendered = rendered(&read_config(bad.path()).unwrap_err(), bad.path());
    assert_eq!(rendered.len(), 3, "{rendered:?}");
    assert!(rendered[0].contains("2: api.admin: is \"here\""), "{rendered:?}");
    assert!(rendered[1].contains("3: api.tls_key: is given without `tls_cert`"), "{rendered:?}");
    assert!(rendered[2].contains("4: api.allowed_hosts[0]: is \"http://a:1\""), "{rendered:?}");
}

#[test]
fn admin_calls_have_a_listener_of_their_own_unless_all_is_on_loopback() {
    let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
    let (closed, open) =
        ([at("127.0.0.1:8000"), at("[::1]:8001")], [at("127.0.0.1:8000"), at("0.0.0.0:8001")]);
    let config = AccessConfig::default();
    assert_eq!(config.admin_beside(&closed), None);
    assert_eq!(config.admin_beside(&open), Some(at("127.0.0.1:8002")));
    assert_eq!(config.admin_beside(&[at("0.0.0.0:0")]), Some(at("127.0.0.1:0")));
    let chosen = AccessConfig { admin: Some(at("10.0.0.1:7")), ..AccessConfig::default() };
    assert_eq!(config.with(&chosen).admin_beside(&closed), chosen.admin);
}

#[test]
fn an_admin_listener_beyond_loopback_needs_tokens_or_a_plain_wish() {
    let at = |admin: &str| AccessConfig { admin: Some(admin.parse().unwrap()), ..AccessConfig::default() };
    assert_eq!(at("127.0.0.1:1").open_admin(), None);
    assert_eq!(AccessConfig::default().open_admin(), None);
    assert_eq!(at("0.0.0.0:1").open_admin(), Some("0.0.0.0:1".parse().unwrap()));
    let tokens = AccessConfig { tokens: Some("t.toml".into()), ..at("10.0.0.1:1") };
    assert_eq!(tokens.open_admin(), None);
    let wanted = AccessConfig { insecure_admin: true, ..AccessConfig::default() };
    assert_eq!(at("[::]:1").with(&wanted).open_admin(), None);
}
