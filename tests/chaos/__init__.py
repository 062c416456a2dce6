"""Jobs on a real cluster to which one thing after the other happens: is every element delivered once, or told?"""
