//! Counters of the driver.

/// Counters of the driver since its bring-up, which wrap, and the pages of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Statistics {
    /// Firmware commands issued.
    pub commands: u32,
    /// Asynchronous events.
    pub async_events: u32,
    /// Page requests of the firmware.
    pub page_requests: u32,
    /// Page requests that failed: too few pages, another function, or pages that the firmware offered and did not return.
    pub page_requests_refused: u32,
    /// Pages given to the firmware.
    pub pages_given: u32,
    /// Pages that the firmware returned.
    pub pages_back: u32,
    /// Pages that the firmware has.
    pub pages_held: u32,
    /// Pages of the arena that the driver uses.
    pub pages_used: u32,
    /// Free pages of the arena.
    pub pages_free: u32,
}
