//! Schema, man pages, completions: all printed from the definitions that the program itself runs by.

use clap::{Command, CommandFactory};

use super::{stdout, write_json, write_text};
use crate::Done;
use crate::args::Cli;
use crate::failure::Failure;

pub(crate) fn schema() -> Done {
    write_json(&stdout(), &packetloom_engine::schema::chain_file())
}

pub(crate) fn man(page: Option<&str>) -> Done {
    let mut command = Cli::command();
    command.build();
    let words: Vec<_> = page.map(|page| page.split('-').collect()).unwrap_or_default();
    let mut chosen: &Command = &command;
    for word in words {
        let names = || chosen.get_subcommands().map(Command::get_name).collect::<Vec<_>>().join(", ");
        chosen = chosen
            .find_subcommand(word)
            .ok_or_else(|| Failure::Usage(format!("no verb {word:?}; expected one of: {}", names())))?;
    }
    let mut text = Vec::new();
    let name = chosen.get_display_name().unwrap_or("packetloom").to_owned();
    clap_mangen::Man::new(chosen.clone())
        .title(name.to_uppercase())
        .render(&mut text)
        .map_err(anyhow::Error::from)?;
    write_text(&stdout(), &String::from_utf8_lossy(&text))
}

pub(crate) fn completions(shell: clap_complete::Shell) -> Done {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "packetloom", &mut text);
    write_text(&stdout(), &String::from_utf8_lossy(&text))
}
