//! A server behind TLS, and who trusts it.

use std::net::TcpListener;
use std::process::Command;

use orchestrix_engine::redis::RedisPlace;
use orchestrix_engine::suite::{append_one, read_all};
use orchestrix_engine::{Error, Shared};
use orchestrix_testbed::{Place, Server, certificates, free_port};

use crate::common::{FORGETFUL, HASTY, PATIENT, redis};

/// A server with a certificate for 127.0.0.1, and its port for TLS.
fn behind_tls() -> (Server, u16) {
    let port = free_port();
    let recipe = orchestrix_testbed::redis(&["--requirepass", "let-me-in", "--tls-auth-clients", "no"]);
    let tls = move |place: &Place, command: &mut Command| {
        command.args(["--tls-port", &port.to_string()]);
        for (setting, file) in [("cert", "server.crt"), ("key", "server.key"), ("ca-cert", "ca.crt")] {
            command.arg(format!("--tls-{setting}-file")).arg(place.folder.join(file));
        }
    };
    let recipe = recipe.prepared(|folder| certificates(folder, "0")).with(tls);
    (Server::start(recipe).unwrap(), port)
}

fn refused(url: &str) -> Error {
    RedisPlace::connect(url, PATIENT).map(|_| ()).unwrap_err()
}

#[test]
fn a_tls_server_is_trusted_only_with_its_authority() {
    let (server, port) = behind_tls();
    let authority = |name: &str| server.folder().join(name).display().to_string();
    let url = |ca: &str| format!("rediss://:let-me-in@127.0.0.1:{port}{ca}");
    let place = RedisPlace::connect(&url(&format!("?ca={}", authority("ca.crt"))), PATIENT).unwrap();
    assert!(place.place().starts_with(&format!("rediss://127.0.0.1:{port}/0")), "{}", place.place());
    let mut journal = place.journal().unwrap();
    let written: Vec<_> = (0..3).map(|bytes| append_one(&mut *journal, 1, bytes * 50_000).0).collect();
    assert_eq!(read_all(&*journal, orchestrix_core::Position(0), 1 << 20), written);

    // Another authority; none of the machine's; a name that the certificate does not have.
    let other = format!("?ca={}", authority("other.crt"));
    let elsewhere = format!("rediss://:let-me-in@localhost:{port}/?ca={}", authority("ca.crt"));
    for url in [url(&other), url(""), elsewhere] {
        let error = refused(&url);
        let told = error.to_string();
        assert!(told.contains("does not prove who it is") && told.contains("?ca=FILE"), "{told}");
        assert!(!error.retryable && !told.contains("let-me-in"), "{told}");
    }
    let missing = refused(&url(&format!("?ca={}", authority("none.crt")))).to_string();
    assert!(missing.contains("none.crt cannot be read"), "{missing}");
    let wrong = refused(&format!("rediss://:wrong@127.0.0.1:{port}?ca={}", authority("ca.crt")));
    assert!(wrong.to_string().contains("did not accept the password") && !wrong.retryable, "{wrong}");
}

#[test]
fn a_server_without_tls_is_not_waited_for() {
    let plain = redis(&FORGETFUL);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for port in [plain.port(), silent.local_addr().unwrap().port()] {
        let error =
            RedisPlace::connect(&format!("rediss://127.0.0.1:{port}"), HASTY).map(|_| ()).unwrap_err();
        let told = error.to_string();
        assert!(told.contains("no answer within 300ms; does it speak TLS on this port?"), "{told}");
        assert!(error.retryable, "{told}");
    }
}
