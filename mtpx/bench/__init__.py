"""Matched runs, their statistics, and the one question: does MTP pay here?"""
