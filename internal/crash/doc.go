// Package crash has no code but its test: two servers and their Postgres are killed at random under
// load, and then nothing that was acknowledged may be lost, and nothing may have happened twice.
package crash
