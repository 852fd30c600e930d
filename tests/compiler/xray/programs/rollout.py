"""A rollout of reinforcement learning: an environment in NumPy, epsilon-greedy actions, returns, a policy gradient."""

import collections
import random

import numpy as np
import torch
from torch import nn


class Environment:
    def __init__(self):
        self.state = np.zeros(4, dtype=np.float32)
        self.steps = 0

    def step(self, action):
        self.steps += 1
        self.state = self.state + np.random.normal(size=4).astype(np.float32)
        reward = 1.0 if action == 0 else 0.5
        return torch.from_numpy(self.state), reward, self.steps >= 3


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 16)
        self.policy = nn.Linear(16, 2)
        self.value = nn.Linear(16, 1)
        self.epsilon = 0.5
        self.memory = collections.deque(maxlen=8)

    def act(self, observation):
        hidden = torch.tanh(self.body(observation))
        probabilities = torch.softmax(self.policy(hidden), -1)
        if random.gauss(0.0, 1.0) > 1e3:  # breaks: random.gauss
            action = torch.tensor(0)
        else:
            action = torch.multinomial(probabilities, 1)[0]
        return action, torch.log(probabilities[action]), self.value(hidden)  # breaks: probabilities[action]

    def forward(self, environment, observation):
        log_probs, rewards, values = [], [], []
        done = False
        while not done:
            action, log_prob, value = self.act(observation)
            observation, reward, done = environment.step(action.item())  # breaks: action.item()
            self.memory.append((float(value), reward))  # breaks: float(value)
            log_probs.append(log_prob)
            rewards.append(reward)
            values.append(value)
        returns, running = [], 0.0
        for reward in reversed(rewards):
            running = reward + 0.9 * running
            returns.insert(0, running)
        returns = torch.tensor(returns)
        advantage = returns - torch.cat(values)
        if advantage.std() > 1e-6:  # breaks: advantage.std() > 1e-6
            advantage = advantage / advantage.std()
        loss = -(torch.stack(log_probs) * advantage.detach()).mean()
        print("return", returns[0].item(), "loss", loss)  # breaks: returns[0].item() | print
        return loss


def program():
    torch.manual_seed(0)
    np.random.seed(0)
    return Agent(), [(Environment(), torch.zeros(4))]


CAUSES = (
    ("number", "if random.gauss(", "random.gauss("),
    ("module attribute", "self.steps += 1", "self.steps += 1"),
    ("number", "observation, reward, done =", "action.item()"),
)
