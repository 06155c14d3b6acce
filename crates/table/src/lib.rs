//! Tables of flows: [`states`] in this machine's memory, [`regions`] in that of a device.

mod pages;
pub mod regions;
pub mod states;
