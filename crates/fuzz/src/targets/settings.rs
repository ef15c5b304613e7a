//! Files that operators write.

use orchestrix_server::config::{ServeArgs, Settings};
use orchestrix_server::tokens::{Secret, Tokens};

/// A tokens file is taken whole or refused with a reason; nobody comes in with a token that it does not have.
pub(super) fn tokens(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match Tokens::parse(text) {
        Ok(tokens) => {
            let found = tokens.find(&Secret::new(text.to_owned()));
            assert!(found.is_none(), "a file does not have its own digest");
            assert!(!format!("{tokens:?}").is_empty());
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

/// The first byte chooses: the file, or one variable.
pub(super) fn config(input: &[u8]) {
    let Some((&choice, text)) = input.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let choice = usize::from(choice);
    if choice.is_multiple_of(2) {
        if let Ok(file) = ServeArgs::parse(text) {
            assert_eq!(file.clone().or(ServeArgs::default()), file);
            check(Settings::resolve(file, |_| None));
        }
        return;
    }
    let chosen = ServeArgs::NAMES[choice / 2 % ServeArgs::NAMES.len()];
    if chosen == "config" {
        return;
    }
    let variable = format!("ORCHESTRIX_{}", chosen.to_uppercase());
    check(Settings::resolve(ServeArgs::default(), |name| (name == variable).then(|| text.to_owned())));
}

fn check(settings: Result<Settings, String>) {
    match settings {
        Ok(settings) => {
            let limits = settings.limits;
            assert!(limits.connections > 0 && limits.header_bytes >= 1 << 10 && limits.body_bytes >= 1 << 10);
        }
        Err(why) => assert!(!why.is_empty()),
    }
}
