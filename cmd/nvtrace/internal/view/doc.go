// Package view makes reports, logs and exports of recordings, and of the events of a run while they come.
package view
