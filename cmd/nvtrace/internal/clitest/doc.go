// Package clitest helps tests of verbs.
package clitest
