//! A store behind TLS, and credentials of the environment. Both are read from the environment of a process, so these
//! run in one of their own.

use std::process::Command;

use orchestrix_engine::Shared;
use orchestrix_engine::s3::S3Place;
use orchestrix_engine::suite::append_one;

use crate::common::{BUCKET, KEY, PATIENT, SECRET, certificates_folder, new_prefix, shared_store};

const URL: &str = "ORCHESTRIX_TESTS_URL";

/// Does something at a URL in a process with this environment, and answers what it said.
fn visit(url: &str, environment: &[(&str, &str)]) -> (bool, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "tls::visitor", "--nocapture"]).env(URL, url);
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "SSL_CERT_DIR"] {
        command.env_remove(name);
    }
    let output = command.envs(environment.iter().copied()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// What the process of its own does; without a URL there is nobody to visit.
#[test]
fn visitor() {
    let Ok(url) = std::env::var(URL) else { return };
    let place = S3Place::connect(&url, PATIENT).unwrap();
    append_one(&mut *place.journal().unwrap(), 1, 10);
}

#[test]
fn a_tls_store_is_trusted_only_with_its_authority() {
    let prefix = new_prefix();
    let url = format!("s3://{BUCKET}/{prefix}?endpoint=https://127.0.0.1:{}", shared_store().https);
    let keys = [("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)];
    let authority = |name: &str| certificates_folder().join(name).display().to_string();
    let (ca, other) = (authority("ca.crt"), authority("other.crt"));
    let (ok, said) = visit(&url, &[keys[0], keys[1], ("SSL_CERT_FILE", &ca)]);
    assert!(ok, "{said}");
    let (ok, said) = visit(&url, &[keys[0], keys[1], ("SSL_CERT_FILE", &other)]);
    assert!(!ok && said.contains("invalid peer certificate"), "{said}");
    let (ok, said) = visit(&url, &[("SSL_CERT_FILE", &ca)]);
    assert!(!ok && said.contains("set AWS_ACCESS_KEY_ID"), "{said}");
}
