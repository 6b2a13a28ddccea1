"""A pass: its rows, trees and cache, the contract of what computes it, and who runs it."""
