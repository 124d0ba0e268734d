// Where a segment of a window stands in its sequence: four words that the host writes anew for each
// window, so that a recorded list serves all of them.
const uint POS0 = 0u; // position of the first row
const uint OWED = 1u; // accepted drafts of the window before, which the recurrent state lacks
const uint FIRM = 2u; // rows of this window that are certain; behind them stand drafts
const uint CAP = 3u;  // rows of the journal of drafts
