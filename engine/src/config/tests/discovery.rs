//! The table `[discovery]`, good and bad.

use super::{folder, rendered};
use crate::config::{Config, Diagnostics, DiscoveryConfig, DnsName, EtcdTlsFiles, read_config};
use std::time::Duration;

/// An engine of three hosts, of which CONFIG says no address.
const HOSTS: &str = "[[hosts]]\nname = \"f\"\nrole = \"frontend\"\n[[hosts]]\nname = \"s\"\nrole = \"scheduler\"\n\
                     [[hosts]]\nname = \"b\"\nrole = \"backend\"\n[[executors]]\nkind = \"emulated\"\nhost = \"b\"\n\
                     [[models]]\nname = \"m\"\nexecutor = \"emulated\"\nslo_ms = 50\n\
                     profile = { alpha_ms = 1, beta_ms = 5 }\n";

fn read(discovery: &str) -> Result<Config, Vec<String>> {
    let folder = folder(&[("symphony.toml", format!("{discovery}{HOSTS}").as_bytes())]);
    let shown = |diagnostics: Diagnostics| rendered(&diagnostics, folder.path());
    read_config(folder.path()).map_err(shown)
}

#[test]
fn an_etcd_has_what_is_given_and_defaults_for_the_rest() {
    let config = read("[discovery]\nsource = \"etcd\"\nendpoints = [\"http://a:2379\"]\n").unwrap();
    let DiscoveryConfig::Etcd(etcd) = config.discovery else { panic!("{:?}", config.discovery) };
    assert_eq!((&*etcd.prefix, etcd.lease), ("/symphony/", Duration::from_secs(10)));
    assert_eq!((etcd.login, etcd.tls), (None, None));
    let config = read(
        "[discovery]\nsource = \"etcd\"\nendpoints = [\"https://a:2379\", \"https://[::1]:2\"]\nprefix = \"/x/\"\n\
         lease_s = 2.5\nuser = \"u\"\npassword_file = \"/p\"\ntls_ca = \"/ca\"\ntls_cert = \"/c\"\ntls_key = \"/k\"\n",
    );
    let DiscoveryConfig::Etcd(etcd) = config.unwrap().discovery else { panic!("it is an etcd") };
    assert_eq!((etcd.endpoints.len(), &*etcd.prefix, etcd.lease), (2, "/x/", Duration::from_millis(2_500)));
    assert_eq!(etcd.login, Some(("u".to_owned(), "/p".into())));
    let identity = Some(["/c".into(), "/k".into()]);
    assert_eq!(etcd.tls, Some(EtcdTlsFiles { authorities: "/ca".into(), identity }));
}

#[test]
fn names_of_dns_have_a_port() {
    let names = "frontends = \"front.svc:7400\"\nscheduler = \"scheduler.svc:7401\"\n";
    let config = read(&format!("[discovery]\nsource = \"dns\"\n{names}")).unwrap();
    let DiscoveryConfig::Dns(dns) = config.discovery else { panic!("{:?}", config.discovery) };
    assert_eq!(dns.frontends, DnsName { name: "front.svc".to_owned(), port: 7_400 });
    assert_eq!((dns.scheduler.port, dns.every), (7_401, Duration::from_secs(5)));
}

#[test]
fn what_is_wrong_is_said_and_what_would_be_right() {
    let said = |text: &str| read(text).unwrap_err().join("\n");
    for (text, sentence) in [
        ("", "hosts[0].address: is missing"),
        ("[discovery]\nsource = \"etc\"\n", "is \"etc\"; it must be one of"),
        ("[discovery]\nsource = \"etcd\"\n", "endpoints: is missing; add a list of URLs"),
        ("[discovery]\nsource = \"etcd\"\nendpoints = [\"a:2379\"]\n", "it must be a URL, http://HOST:PORT"),
        ("[discovery]\nsource = \"etcd\"\nendpoints = [\"https://a:1\"]\n", "tls_ca: is missing"),
        (
            "[discovery]\nsource = \"etcd\"\nendpoints = [\"http://a:1\"]\nuser = \"u\"\n",
            "user: is given without its password",
        ),
        (
            "[discovery]\nsource = \"etcd\"\nendpoints = [\"http://a:1\"]\nprefix = \"x\"\n",
            "it ends with a slash",
        ),
        (
            "[discovery]\nsource = \"dns\"\nfrontends = \"f\"\nscheduler = \"s:1\"\n",
            "the name of a headless service and the port",
        ),
        ("[discovery]\nsource = \"dns\"\nendpoints = []\n", "frontends: is missing"),
        ("[discovery]\nsource = \"dns\"\nendpoints = []\n", "endpoints: is of another source than \"dns\""),
    ] {
        assert!(said(text).contains(sentence), "{text:?}: {}", said(text));
    }
}
