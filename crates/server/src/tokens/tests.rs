//! Tokens files, valid and refused ones.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn new(expires: Option<&str>) -> NewToken {
    make(&NewArgs {
        name: Name::new("ci").unwrap(),
        roles: vec![Role::Submit, Role::Read],
        queues: vec![Name::new("mail").unwrap()],
        expires: expires.map(|text| text.parse().unwrap()),
    })
    .unwrap()
}

#[test]
fn a_new_token_is_found_by_its_text_and_by_no_other() {
    let NewToken { token, lines } = new(None);
    let tokens = Tokens::parse(&lines).unwrap();
    let found = tokens.find(&token).unwrap();
    assert_eq!(found.name.as_str(), "ci");
    assert!(found.has(Role::Submit) && found.has(Role::Read) && !found.has(Role::Admin));
    assert_eq!(found.queues().unwrap()[0].as_str(), "mail");
    assert!(tokens.find(&Secret::new("orx_00".to_owned())).is_none());
    assert!(!lines.contains(&token.0));
    assert_ne!(new(None).token.0, token.0);
}

#[test]
fn a_token_ends_at_its_time() {
    let tokens = Tokens::parse(&new(Some("2027-01-31T12:30:00+02:00")).lines).unwrap();
    let token = &tokens.tokens[0];
    assert_eq!(token.expires, Some(1_801_391_400));
    assert!(!token.is_expired(1_801_391_399));
    assert!(token.is_expired(1_801_391_400));
}

#[test]
fn dates_become_unix_seconds() {
    let seconds = |text: &str| unix_seconds(&text.parse().unwrap());
    assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0));
    assert_eq!(seconds("2000-02-29T23:59:59Z"), Some(951_868_799));
    assert_eq!(seconds("2100-03-01T00:00:00Z"), Some(4_107_542_400));
    assert_eq!(seconds("2027-01-31"), None);
    assert_eq!(seconds("2027-01-31T00:00:00"), None);
}

#[test]
fn a_file_with_a_mistake_is_refused_with_a_sentence() {
    let digest = "0".repeat(64);
    let entry =
        |more: &str| format!("[[token]]\nname = \"a\"\nroles = [\"read\"]\nsha256 = \"{digest}\"\n{more}");
    assert!(Tokens::parse(&entry("")).is_ok());
    for (text, why) in [
        (String::new(), "has no [[token]]"),
        (entry("role = \"read\""), "unknown field …, expected one of `name`, `roles`"),
        (entry("expires = 2027-01-01"), "no date with time and zone"),
        (entry("").replace("read", "reader"), "unknown variant …, expected one of `submit`"),
        (entry("").replace("[\"read\"]", "[]"), "has no role"),
        (entry("").replace(&digest, "abc"), "64 hexadecimal digits"),
        (entry("") + &entry(""), "two tokens are called"),
        (entry("") + &entry("").replace("\"a\"", "\"b\""), "tokens \"a\" and \"b\" have the same sha256"),
    ] {
        let told = Tokens::parse(&text).unwrap_err();
        assert!(told.contains(why), "{told}");
    }
}

#[test]
fn a_file_that_others_can_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.toml");
    std::fs::write(&path, new(None).lines).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o604)).unwrap();
    let told = Tokens::load(&path).unwrap_err();
    assert!(told.contains("chmod 600") && told.contains("mode 0604"), "{told}");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(Tokens::load(&path).is_ok());
}

#[test]
fn a_secret_cannot_be_shown() {
    assert_eq!(format!("{:?}", Secret::new("canary".to_owned())), "Secret");
}

#[test]
fn a_complaint_repeats_nothing_of_the_file() {
    for text in [
        "[[token]]\nname = \"a\"\nroles = [\"canarysecret\"]\nsha256 = \"\"",
        "[[token]]\nname = \"a\"\nroles = [\"read\"]\ncanarysecret = 1",
        "canarysecret = 1",
        "canarysecret",
        "[canarysecret]\n[canarysecret]",
        "token = \"canarysecret\"",
    ] {
        let why = Tokens::parse(text).unwrap_err();
        assert!(why.contains("line ") && !why.contains("canary"), "{text}: {why}");
    }
    let missing = Tokens::parse("[[token]]\nname = \"a\"\nroles = [\"read\"]").unwrap_err();
    assert!(missing.contains("missing field `sha256`"), "{missing}");
}
