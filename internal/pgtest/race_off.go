//go:build !race

package pgtest

const raceDetector = false
