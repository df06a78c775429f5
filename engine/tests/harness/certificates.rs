//! The authority of a cluster's links, and the certificates of its hosts.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::path::Path;

/// The DNS name in all certificates, which is the default of `tls_name`.
const NAME: &str = "symphony";

/// An authority.
pub(crate) struct LinkAuthority(CertifiedIssuer<'static, KeyPair>);

impl LinkAuthority {
    /// Makes an authority of its own.
    pub(crate) fn new() -> LinkAuthority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        LinkAuthority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes a certificate of hosts of this role into a folder, and returns the section of CONFIG
    /// that names it.
    pub(crate) fn write(&self, folder: &Path, role: &str) -> String {
        self.issue(folder, vec![NAME.to_owned(), format!("{role}.{NAME}")]);
        "[links]\ntls_cert = \"host.pem\"\ntls_key = \"host.key\"\ntls_ca = \"cluster.pem\"\n".to_owned()
    }

    /// Writes a certificate of these names, its key and that of the authority into a folder:
    /// `host.pem`, `host.key` and `cluster.pem`.
    pub(crate) fn issue(&self, folder: &Path, names: Vec<String>) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(names).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        std::fs::write(folder.join("host.pem"), certificate.pem()).unwrap();
        std::fs::write(folder.join("host.key"), key.serialize_pem()).unwrap();
        std::fs::write(folder.join("cluster.pem"), self.0.pem()).unwrap();
    }
}
